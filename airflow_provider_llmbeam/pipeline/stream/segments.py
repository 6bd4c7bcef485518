"""The journal of a queue that has no place for one: segments below `state_uri`, as those of batch jobs.

A process writes segments of its own, and looks for an answer in those of all. A segment is deleted when none of
its messages can be delivered again.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from airflow_provider_llmbeam.engine.journal.entry import MAX_LINE_BYTES
from airflow_provider_llmbeam.engine.journal.journal import Journal
from airflow_provider_llmbeam.engine.journal.segment_name import SegmentName, half_of, job_prefix
from airflow_provider_llmbeam.engine.journal.segment_writer import SegmentWriter
from airflow_provider_llmbeam.engine.outcome import Outcome
from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.stream.partition import Place

#: Time after which a new segment begins, in seconds.
_SEGMENT_SECONDS = 60.0
#: Shortest time between two looks for answers of other processes, in seconds: each lists the directory, for which
#: Cloud Storage bills 5 USD per million, 2.16 USD a day at this interval. Source: cloud.google.com/storage/pricing
#: (class A, Standard in a region; read 2026-11-29).
_LOOK_SECONDS = 0.2
#: Time for which a segment is kept after its last message was acknowledged: acknowledgements may be lost, and the
#: longest deadline of one is ten minutes. Source: cloud.google.com/pubsub/docs/lease-management.
_KEPT_SECONDS = 600.0
#: Age at which a segment of a process that was killed is deleted, in seconds: a subscription keeps a message for
#: seven days by default. Source: cloud.google.com/pubsub/docs/subscription-properties.
_LOST_SECONDS = 7 * 86_400.0


@dataclass(eq=False, slots=True)
class _Segment:
    """A segment of this process, in one or several files.

    Attributes:
        number: Its number.
        began_at: Unix time at which it began.
        uris: Its files.
        live: Number of entries with messages that are not acknowledged.
        ended_at: Unix time at which the last of them was acknowledged.
        is_complete: Whether it gets no further entries.
    """

    number: int
    began_at: float
    uris: list[str] = field(default_factory=list)
    live: int = 0
    ended_at: float = 0.0
    is_complete: bool = False


class SegmentJournal:
    """What is paid and not acknowledged yet, in files. Its coroutines belong to one event loop.

    Args:
        directory: Directory of the segments; ends in `/`.
        job: Name of the job.
    """

    def __init__(self, directory: str, job: str) -> None:
        storage.make_private(directory)
        self._directory, self._job = directory, job
        self._journal = Journal(directory, job=job, files=storage)
        self._segments: dict[int, _Segment] = {}
        self._writer: SegmentWriter | None = None
        self._writing, self._counting = asyncio.Lock(), threading.Lock()
        self._asked: dict[str, asyncio.Future[Outcome | None]] = {}
        self._look_task: asyncio.Task[None] | None = None
        self._looked_at = -math.inf

    async def find(self, fingerprint: str) -> Outcome | None:
        """Returns the outcome of a fingerprint that any process has stored.

        Raises:
            JobFailedError: The directory cannot be read.
        """
        loop = asyncio.get_running_loop()
        found: asyncio.Future[Outcome | None] = loop.create_future()
        self._asked[fingerprint] = found
        if self._look_task is None:
            self._look_task = loop.create_task(self._look())
        return await found

    async def write(self, place: Place, fingerprint: str, entry: bytes) -> int | None:
        """Stores an entry; returns the number of its segment, `None` if it is too large.

        Raises:
            JobFailedError: The entry cannot be stored.
        """
        if len(entry) > MAX_LINE_BYTES:
            return None
        async with self._writing:
            with self._errors():
                segment, writer = await self._open(time.time())
        segment.live += 1
        writer.write(hash(half_of(fingerprint)), entry)
        async with self._writing:  # the first one stores the entries of all who wait
            with self._errors():
                while writer.unstored:
                    stored = await asyncio.to_thread(writer.store)
                    if stored is not None:
                        await asyncio.wrap_future(stored)
        return segment.number

    def end(self, numbers: Iterable[int]) -> None:
        """Notes that messages are acknowledged, by the segments of their entries; called on any thread."""
        with self._counting:
            for number in numbers:
                if (segment := self._segments.get(number)) is not None:
                    segment.live -= 1
                    segment.ended_at = time.time()

    async def close(self) -> None:
        """Stores what is left."""
        async with self._writing:
            with self._errors():
                await self._complete()

    async def _look(self) -> None:
        """Looks at an interval, once for all that are asked for by then, until none is."""
        loop = asyncio.get_running_loop()
        while self._asked:
            await asyncio.sleep(self._looked_at + _LOOK_SECONDS - loop.time())
            self._looked_at = loop.time()
            asked, self._asked = self._asked, {}
            found: dict[str, Outcome] = {}
            error: JobFailedError | None = None
            try:
                with self._errors():
                    found = await asyncio.to_thread(self._journal.find, asked)
            except JobFailedError as raised:
                error = raised
            for fingerprint, waiting in asked.items():
                if waiting.done():
                    continue
                if error is None:
                    waiting.set_result(found.get(fingerprint))
                else:
                    waiting.set_exception(error)
        self._look_task = None

    async def _open(self, now: float) -> tuple[_Segment, SegmentWriter]:
        """Returns the present segment, a new one every minute; deletes those that are of no use any more."""
        segment = self._segments[max(self._segments)] if self._segments else None
        if segment is not None and self._writer is not None and now - segment.began_at < _SEGMENT_SECONDS:
            return segment, self._writer
        await self._complete()
        await asyncio.to_thread(self._delete, now)
        segment = _Segment(max(self._segments, default=-1) + 1, now)
        self._segments[segment.number] = segment
        self._writer = self._journal.open_writer(segment.uris.append)
        return segment, self._writer

    async def _complete(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            await asyncio.to_thread(writer.close)
            self._segments[max(self._segments)].is_complete = True

    def _delete(self, now: float) -> None:
        with self._counting:
            ended = [
                each
                for each in self._segments.values()
                if each.is_complete and not each.live and now - each.ended_at > _KEPT_SECONDS
            ]
            for each in ended:
                del self._segments[each.number]
        lost = [
            uri
            for uri in storage.match(f"{self._directory}{job_prefix(self._job)}*.jsonl")
            if (name := SegmentName.parse(uri)) is not None and now - name.created_at > _LOST_SECONDS
        ]
        self._journal.delete({*lost, *(uri for each in ended for uri in each.uris)})

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise JobFailedError(
                f"The journal in {self._directory!r} cannot be used: {error}. What is answered and not sent yet "
                "is perhaps paid again. Make room or grant access there; the worker then goes on where it was."
            ) from error
