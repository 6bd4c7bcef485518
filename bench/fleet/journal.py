"""Objects and operations of a journal in an object store: of one process with the real journal, and of all."""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import IO

from airflow_provider_llmbeam.engine.journal.journal import Journal
from airflow_provider_llmbeam.engine.journal.segment_name import SHARDS
from airflow_provider_llmbeam.engine.outcome import Completion
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.token_counts import Tokens
from airflow_provider_llmbeam.engine.unstored import Unstored
from bench.fleet.case import ENTRY_BYTES, INDEX_BYTES, OPERATION_SECONDS, READ_ENTRY_SECONDS, FleetCase

#: Objects of one page of a listing (https://cloud.google.com/storage/docs/json_api/v1/objects/list).
PAGE_OBJECTS = 1000


@dataclass
class CountedObjects:
    """An object store in memory that counts what is written and deleted."""

    sizes_by_uri: dict[str, int] = field(default_factory=dict)
    written: int = 0
    deleted: int = 0

    def is_local(self, uri: str) -> bool:
        """Returns `False`."""
        return False

    def create(self, uri: str) -> IO[bytes]:
        """Is not used in an object store."""
        raise NotImplementedError

    def open(self, uri: str) -> IO[bytes]:
        """Returns an empty object."""
        return io.BytesIO()

    def replace(self, uri: str, content: bytes) -> None:
        """Counts an object that is written."""
        self.written += 1
        self.sizes_by_uri[uri] = len(content)

    def delete(self, uris: Collection[str]) -> None:
        """Counts objects that are deleted."""
        for uri in uris:
            self.deleted += 1
            del self.sizes_by_uri[uri]

    def sizes(self, pattern: str) -> Mapping[str, int]:
        """Returns the objects that match a pattern."""
        return {uri: size for uri, size in self.sizes_by_uri.items() if fnmatchcase(uri, pattern)}


@dataclass(frozen=True, kw_only=True)
class BatchObjects:
    """Objects of one batch of one process.

    Attributes:
        written: Objects written, in parts of segments and in segments.
        deleted: Parts that were deleted.
        segments: Objects that remain.
        parts: Mean number of parts while the batch is under way.
    """

    written: int
    deleted: int
    segments: int
    parts: float


def write_batch(case: FleetCase) -> BatchObjects:
    """Writes a batch with the real journal, whose answers arrive at the rate of the quota."""
    now, uploaded_at, parts = 0.0, 0.0, 0
    objects = CountedObjects()
    journal = Journal("gs://bucket/journal/", files=objects, clock=lambda: now, now=lambda: now)
    prompts = [Prompt(str(number)) for number in range(case.batch_rows)]
    record = journal.batch(prompts, [hashlib.sha256(prompt.text.encode()).hexdigest() for prompt in prompts])
    most = max(1, int(case.max_in_flight * Unstored.SLOTS_PER_OBJECT_RATIO))
    answer = Completion(
        text="", model="m", finish_reason="stop", tokens=Tokens(case.input_tokens, case.output_tokens),
        attempts=1, latency_seconds=case.latency_seconds, sent_at=0.0, answered_at=0.0,
    )  # fmt: skip
    for number, prompt in enumerate(prompts):
        now = number / case.process_rows_per_second
        record.finished(prompt, answer)
        if record.unstored >= most and now >= uploaded_at and (upload := record.store()):
            upload.result()
            uploaded_at = now + OPERATION_SECONDS
        parts += objects.written - objects.deleted
    record.close()
    segments = len(objects.sizes_by_uri)
    return BatchObjects(
        written=objects.written, deleted=objects.deleted, segments=segments, parts=parts / case.batch_rows
    )


@dataclass(frozen=True, kw_only=True)
class FleetJournal:
    """The journal of a job.

    Attributes:
        objects: Objects at the end.
        written: Objects written.
        deleted: Objects deleted.
        pages: Pages of all listings.
        last_listing_seconds: Time of the last listing, during which its process sends nothing.
        listing_ratio: Share of the time of the processes that listings take.
        reads_in_order: Segments read, if a runner sends keys in their order.
        reads: The same if it does not: each process reads the segments of all others.
        read_ratio: Share of a core that reads take then.
        index_bytes: Memory of the index of a process then.
        bytes: Size of the journal.
    """

    objects: int
    written: int
    deleted: int
    pages: int
    last_listing_seconds: float
    listing_ratio: float
    reads_in_order: int
    reads: int
    read_ratio: float
    index_bytes: int
    bytes: int


def write_all(case: FleetCase, batch: BatchObjects) -> FleetJournal:
    """Adds up the batches of all processes, which end one after the other."""
    batches = math.ceil(case.rows / case.batch_rows)
    under_way = case.processes * batch.parts
    pages = sum(math.ceil((number * batch.segments + under_way) / PAGE_OBJECTS) for number in range(batches))
    objects = batches * batch.segments
    last = math.ceil((objects + under_way) / PAGE_OBJECTS)
    # In order, a batch meets the batches before it that have its shard.
    batches_of_a_shard = max(1, batches // SHARDS)
    entries_of_others = case.rows * (1 - 1 / case.processes)
    return FleetJournal(
        objects=objects,
        written=batches * batch.written,
        deleted=batches * batch.deleted,
        pages=pages,
        last_listing_seconds=last * OPERATION_SECONDS,
        listing_ratio=pages * OPERATION_SECONDS / (case.processes * case.quota_seconds),
        reads_in_order=round(batches * (batches_of_a_shard - 1) / 2 * batch.segments),
        reads=round((case.processes - 1) * objects),
        read_ratio=entries_of_others * READ_ENTRY_SECONDS / case.quota_seconds,
        index_bytes=case.rows * INDEX_BYTES,
        bytes=case.rows * ENTRY_BYTES,
    )
