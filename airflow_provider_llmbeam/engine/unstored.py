"""Outcomes that are not stored yet, which count as requests in flight."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from airflow_provider_llmbeam.engine.request import Batch


class Unstored:
    """Counts the outcomes of the batches under way that are not stored yet, and has them stored.

    They take the slots of requests in flight, so a process that is killed loses no more answers than it may have
    requests in flight. In a local journal they are those of one iteration of the event loop: one system call for
    each answer was 6 % of the processor time of a job. An object store takes a tenth of a second for each object:
    with an eighth of the slots in one object, a job that uses all of its slots sends about 8 % fewer requests at a
    latency of 5 s.

    Args:
        max_in_flight: Maximum number of concurrent requests.
        on_stored: Called when there are fewer, on the event loop.
    """

    SLOTS_PER_OBJECT_RATIO = 1 / 8

    def __init__(self, max_in_flight: int, on_stored: Callable[[], None]) -> None:
        self._most = max(1, int(max_in_flight * self.SLOTS_PER_OBJECT_RATIO))
        self._on_stored = on_stored
        self._batches: list[Batch] = []
        self._next_upload = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def count(self) -> int:
        """Number of outcomes that are not stored yet, except those of a batch that has failed."""
        count = 0
        for batch in self._batches:  # asked for twice per prompt, and a generator takes longer than all the rest
            if batch.record is not None and batch.error is None:
                count += batch.record.unstored
        return count

    @asynccontextmanager
    async def of(self, batch: Batch) -> AsyncIterator[None]:
        """Counts those of a batch while the body runs, and until they are stored."""
        self._batches.append(batch)
        try:
            yield
            self._store(batch, is_last=True)
            while batch.record and batch.record.unstored and batch.error is None:
                await self._next_upload.wait()
                self._store(batch, is_last=True)
        finally:
            self._batches.remove(batch)

    def finished(self, batch: Batch) -> None:
        """Has outcomes stored, at once if there are many, else soon; to be called after each."""
        count = self.count
        if count >= self._most:
            self.store()
        elif count and batch.record is not None and self._timer is None:
            seconds = batch.record.max_unstored_seconds
            self._timer = asyncio.get_running_loop().call_later(seconds, self.store)

    def store(self) -> None:
        """Has all outcomes so far stored."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for batch in self._batches:
            self._store(batch)

    def _store(self, batch: Batch, *, is_last: bool = False) -> None:
        if batch.record is None:
            return
        try:
            upload = batch.record.store(is_last=is_last)
        except Exception as error:  # noqa: BLE001 - raised once the requests in flight are answered
            batch.error = batch.error or error
            upload = None
        if upload is None:
            self._on_stored()
        else:
            asyncio.wrap_future(upload).add_done_callback(partial(self._stored, batch))

    def _stored(self, batch: Batch, upload: asyncio.Future[None]) -> None:
        error = upload.exception()
        if isinstance(error, Exception):
            batch.error = batch.error or error
        self._next_upload.set()
        self._next_upload = asyncio.Event()
        self.finished(batch)
        self._on_stored()
