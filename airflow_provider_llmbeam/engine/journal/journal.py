"""record: stores every answer, and every refused one, as it arrives, so that it is not paid for again."""

from __future__ import annotations

import time
import uuid
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import IO, Protocol

from airflow_provider_llmbeam.engine.journal.entry import encode_entry, read_segment
from airflow_provider_llmbeam.engine.journal.segment_name import (
    SegmentName,
    all_shards,
    half_of,
    job_prefix,
    segment_of,
    shard_set,
)
from airflow_provider_llmbeam.engine.journal.segment_writer import (
    AppendingWriter,
    SegmentWriter,
    UploadingWriter,
    WritableFiles,
)
from airflow_provider_llmbeam.engine.outcome import REFUSED, Completion, Failure, Outcome
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.exceptions import JobFailedError


class Files(WritableFiles, Protocol):
    """The filesystem that holds a journal; `pipeline.storage` in a pipeline."""

    def is_local(self, uri: str) -> bool:
        """Returns whether an address is a path of this machine."""
        ...

    def open(self, uri: str) -> IO[bytes]:
        """Opens a file for reading."""
        ...

    def sizes(self, pattern: str) -> Mapping[str, int]:
        """Returns the files that match a pattern, possibly none, with their sizes in bytes."""
        ...


class Journal:
    """Answers in segments below one directory. Each batch writes its own segments.

    Each batch looks up its fingerprints in the segments of its job when it begins. So a runner may repeat work in
    any order, on any worker, and in batches that are cut in another way: what was recorded is not requested again.

    The lookup lists the segments of the job once a batch. It opens a segment only if the shards in its name
    overlap with those of the batch, and keeps eight bytes in memory for each of its answers while it is there, so
    that each process reads a segment at most once, and what is added to it, unless it has answers of the batch.

    Args:
        directory: Directory of the segments; ends in `/`.
        job: Job of the answers, if several jobs share the directory.
        files: Filesystem of the directory.
        oldest_at: Unix time; older answers are requested again.
        since: Unix time; segments that were created before are not looked up, as their answers are known to the
            caller.
        accepts: Returns whether an answer, or a refused one, is of use to the job; others are requested again.
        clock: Monotonic clock, in seconds.
        now: Unix time, in seconds.
    """

    def __init__(
        self,
        directory: str,
        *,
        job: str = "",
        files: Files,
        oldest_at: float = 0.0,
        since: float = 0.0,
        accepts: Callable[[Outcome], bool] = lambda _: True,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._directory = directory
        self._job = job
        self._files = files
        self._oldest_at = oldest_at
        self._since = since
        self._accepts = accepts
        self._clock = clock
        self._now = now
        self._indexes: dict[str, _Index] = {}

    def batch(self, prompts: Sequence[Prompt], fingerprints: Sequence[str]) -> BatchJournal:
        """Opens the record of one batch, and reads what earlier attempts have recorded.

        Args:
            prompts: The batch.
            fingerprints: Fingerprint of each prompt, in the same order.
        """
        recorded, batch = self.conversations(
            {*map(half_of, fingerprints)}, dict(zip(prompts, fingerprints, strict=True))
        )
        batch.earlier = [recorded.get(fingerprint) for fingerprint in fingerprints]
        return batch

    def find(self, fingerprints: Collection[str]) -> dict[str, Outcome]:
        """Returns the outcomes of fingerprints that are recorded, among others."""
        halves = {*map(half_of, fingerprints)}
        return self._recorded(halves, shard_set(halves))

    def open_writer(self, on_segment: Callable[[str], None]) -> SegmentWriter:
        """Opens a writer of entries of any fingerprints.

        Args:
            on_segment: Takes the address of each segment when it begins.
        """
        return self._writer(all_shards(), on_segment)

    def delete(self, uris: Collection[str]) -> None:
        """Deletes segments."""
        for uri in uris:
            self._indexes.pop(uri, None)
        self._files.delete(uris)

    def conversations(
        self, halves: Set[str], fingerprints: Mapping[Prompt, str]
    ) -> tuple[dict[str, Outcome], BatchJournal]:
        """Returns the outcomes that earlier attempts have recorded of conversations, and the record of a batch.

        Args:
            halves: First half of the fingerprints of each conversation.
            fingerprints: Fingerprint of each prompt of the batch, complete when its outcome is recorded.
        """
        shards = shard_set(halves)
        return self._recorded(halves, shards), BatchJournal(
            directory=self._directory,
            writer=self._writer(shards),
            job=self._job,
            fingerprints=fingerprints,
        )

    def _writer(self, shards: int, on_segment: Callable[[str], None] = lambda _: None) -> SegmentWriter:
        def new_segment() -> tuple[str, array[int]]:
            name = SegmentName(shards, int(self._now())).text(self._job, uuid.uuid4().hex)
            index = self._indexes[f"{self._directory}{name}"] = _Index(None)
            on_segment(f"{self._directory}{name}")
            return f"{self._directory}{name}", index.hashes

        if self._files.is_local(self._directory):
            return AppendingWriter(new_segment, self._files.create)
        return UploadingWriter(new_segment, self._files, self._clock)

    def _recorded(self, halves: Set[str], shards: int) -> dict[str, Outcome]:
        found: dict[str, Outcome] = {}
        hashes = {*map(hash, halves)}
        sizes = self._files.sizes(f"{self._directory}{job_prefix(self._job)}*.jsonl")
        for uri, index in [*self._indexes.items()]:
            if index.size is not None and uri not in sizes:
                self._indexes.pop(uri, None)
        for uri, size in sizes.items():
            name = SegmentName.parse(uri)
            if name is None or name.created_at < self._since or not name.shards & shards:
                continue
            index = self._indexes.get(uri) or self._indexes.get(segment_of(uri)) or _Index(0)
            is_current = index.size in (None, size)
            is_wanted = not hashes.isdisjoint(index.hashes)
            if is_current and not is_wanted:
                continue
            is_continued = not is_wanted and index.size is not None and index.size < size
            read = _Index(size, index.hashes[:], index.end) if is_continued else _Index(size)
            try:
                for entry in read_segment(uri, self._files.open, read.end):
                    half = half_of(entry.fingerprint)
                    read.hashes.append(hash(half))
                    read.end = entry.end
                    if half in halves and self._is_usable(entry.outcome):
                        found[entry.fingerprint] = better(entry.outcome, found.get(entry.fingerprint))
            except Exception:
                if self._files.sizes(uri) or self._files.sizes(segment_of(uri)):
                    raise
                continue  # deleted since it was listed: nobody needs its answers any more
            if not is_current:
                self._indexes[uri] = read
        return found

    def _is_usable(self, outcome: Outcome) -> bool:
        return outcome.answered_at >= self._oldest_at and self._accepts(outcome)


def better(later: Outcome, earlier: Outcome | None) -> Outcome:
    """Returns which of two outcomes of one fingerprint counts: the later one, but no refusal above an answer."""
    return earlier if isinstance(later, Failure) and isinstance(earlier, Completion) else later


@dataclass(slots=True)
class _Index:
    """Hashes of the fingerprints of a segment, which are those of this process.

    Attributes:
        size: Size of the segment when it was read, in bytes; `None` for one that this process writes.
        hashes: Hash of the half by which each fingerprint is looked up.
        end: Offset after the last entry that was read.
    """

    size: int | None
    hashes: array[int] = field(default_factory=lambda: array("q"))
    end: int = 0


class BatchJournal:
    """The record of one batch; an engine `Record`.

    Attributes:
        earlier: Outcome of each prompt of the batch that an earlier attempt recorded, or `None`.
        about: By the fingerprint of each request for a verdict, those of the prompts that it is about.
    """

    def __init__(
        self,
        *,
        directory: str,
        writer: SegmentWriter,
        job: str,
        fingerprints: Mapping[Prompt, str],
    ) -> None:
        self.earlier: Sequence[Outcome | None] = ()
        self.about: Mapping[str, Sequence[str]] = {}
        self._directory = directory
        self._writer = writer
        self._job = job
        self._fingerprints = fingerprints

    @property
    def unstored(self) -> int:
        """Number of outcomes that are lost if the process is killed now."""
        return self._writer.unstored

    @property
    def max_unstored_seconds(self) -> float:
        """Longest time for which an outcome may wait for others, to be stored with them."""
        return self._writer.max_unstored_seconds

    def open(self) -> None:
        """Makes sure that answers can be recorded, before the first request.

        Raises:
            JobFailedError: They cannot.
        """
        try:
            self._writer.open()
        except Exception as error:
            raise JobFailedError(
                f"The journal in {self._directory!r} cannot be written: {error}. Nothing of this batch was sent, "
                "and the answers of others are recorded. Make room or grant access there; a retry sends what "
                "is not recorded."
            ) from error

    def sent(self) -> None:
        """Does nothing: a request is not an answer."""

    def rejected(self, hold_seconds: float) -> None:
        """Does nothing: a 429 is not an answer."""

    def finished(self, prompt: Prompt, outcome: Outcome) -> None:
        """Takes an answer, or a refused one. Other failures are not recorded: another run tries them again."""
        if isinstance(outcome, Failure) and outcome.kind not in REFUSED:
            return
        fingerprint = self._fingerprints[prompt]
        line = encode_entry(fingerprint, self._job, outcome, self.about.get(fingerprint, ()))
        self._writer.write(hash(half_of(fingerprint)), line)

    def store(self, *, is_last: bool = False) -> Future[None] | None:
        """Stores all outcomes so far, or begins to do so, see `Record.store`.

        Raises:
            Exception: Error of the filesystem. The next call, or `close`, stores these outcomes.
        """
        return self._writer.store(is_last=is_last)

    def close(self) -> None:
        """Stores all outcomes, which makes them visible to all readers.

        Raises:
            JobFailedError: Answers that were paid for could not be recorded.
        """
        try:
            self._writer.close()
        except Exception as error:
            raise JobFailedError(
                f"The journal in {self._directory!r} cannot be written: {error}. Nothing more is sent; "
                f"{self._writer.unstored or 'some'} answers of this batch were paid for and are not recorded. "
                "Make room or grant access there; a retry sends what is not recorded."
            ) from error
