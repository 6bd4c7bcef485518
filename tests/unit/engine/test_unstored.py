"""Answers that are not stored yet count as requests in flight: a killed process loses no more than those."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import IO, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.journal.journal import Journal
from airflow_provider_llmbeam.engine.outcome import Completion, Outcome
from airflow_provider_llmbeam.engine.pacing.concurrency import ConcurrencyLimit
from airflow_provider_llmbeam.engine.pacing.governor import Governor
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.exceptions import JobCancelledError, JobFailedError
from tests.files import LocalFiles
from tests.hostile import examples
from tests.unit.engine.conftest import run_in_no_time
from tests.unit.engine.test_engine import FakeBackend, engine_of, many

Run = Callable[..., Any]


class SlowRecord:
    """A record whose uploads take a while; after `uploads_before_error` of them they fail."""

    max_unstored_seconds = 15.0

    def __init__(self, backend: FakeBackend, seconds: float, uploads_before_error: int | None = None) -> None:
        self._backend = backend
        self._seconds = seconds
        self._uploads_before_error = uploads_before_error
        self._upload: Future[None] | None = None
        self.unstored = 0
        self.sizes: list[int] = []
        self.peak = 0

    def sent(self) -> None:
        self.peak = max(self.peak, self.at_risk)

    def rejected(self, hold_seconds: float) -> None: ...

    def finished(self, prompt: Prompt, outcome: Outcome) -> None:
        self.unstored += 1
        self.peak = max(self.peak, self.at_risk)

    @property
    def at_risk(self) -> int:
        return self._backend.in_flight + self.unstored

    def store(self, *, is_last: bool = False) -> Future[None] | None:
        if self._upload is not None or not self.unstored:
            return None
        size, upload = self.unstored, Future[None]()
        self._upload = upload

        def end() -> None:
            self._upload = None
            self.sizes.append(size)
            if len(self.sizes) - 1 == self._uploads_before_error:
                upload.set_exception(OSError(28, "No space left on device"))
                return
            self.unstored -= size
            upload.set_result(None)

        asyncio.get_running_loop().call_later(self._seconds, end)
        return upload


@given(
    max_in_flight=st.integers(1, 24),
    latency_seconds=st.sampled_from([0.1, 0.5, 5.0]),
    upload_seconds=st.sampled_from([0.0, 0.1, 1.0]),
    batches=st.integers(1, 4),
    limit=st.sampled_from([None, 1, 3]),
)
@examples(0.4)
def test_requests_in_flight_and_unstored_answers_never_exceed_the_window(
    max_in_flight, latency_seconds, upload_seconds, batches, limit
):
    backend = FakeBackend(seconds=latency_seconds)
    concurrency = None if limit is None else ConcurrencyLimit(limit)
    engine = engine_of(backend, max_in_flight=max_in_flight, concurrency=concurrency)
    records = [SlowRecord(backend, upload_seconds) for _ in range(batches)]

    async def main() -> int:
        peak = 0

        async def watch() -> None:
            nonlocal peak
            while True:
                peak = max(peak, backend.in_flight + sum(record.unstored for record in records))
                await asyncio.sleep(latency_seconds / 3)

        watching = asyncio.create_task(watch())
        rows = many(40 * batches)
        parts = [rows[number::batches] for number in range(batches)]
        answered = await asyncio.gather(
            *(engine.answer(part, record=record) for part, record in zip(parts, records, strict=True))
        )
        watching.cancel()
        assert all(isinstance(outcome, Completion) for part in answered for outcome in part)
        return peak

    assert run_in_no_time(main()) <= max_in_flight
    if batches == 1:
        assert records[0].peak <= max_in_flight, "also between two looks"


def test_an_object_holds_an_eighth_of_the_window(run: Run) -> None:
    backend = FakeBackend(seconds=5.0)
    record = SlowRecord(backend, seconds=0.0)
    run(
        engine_of(backend, max_in_flight=64, governor=Governor(requests_per_minute=300)).answer(
            many(200), record=record
        )
    )
    assert set(record.sizes) == {8}
    assert record.unstored == 0


def test_an_answer_waits_no_longer_than_its_record_allows_for_others_to_be_stored_with_it(run: Run) -> None:
    backend = FakeBackend(seconds=1.0)
    record = SlowRecord(backend, seconds=0.0)
    engine = engine_of(backend, max_in_flight=64, governor=Governor(requests_per_minute=6))

    async def main() -> list[int]:
        answering = asyncio.create_task(engine.answer(many(8), record=record))
        await asyncio.sleep(15.9)  # the first answer is there after 1 s
        before = list(record.sizes)
        await asyncio.sleep(0.2)
        seen = [len(before), *record.sizes]
        await answering
        return seen

    assert run(main()) == [0, 2]
    assert record.sizes == [2] * 4


class OpenedFiles(LocalFiles):
    """Counts the writes to the files it creates, which fail from one of them on."""

    def __init__(self, refused_from: int | None = None) -> None:
        self.writes = 0
        self._refused_from = refused_from

    def create(self, uri: str) -> IO[bytes]:
        files = self

        class Raw(io.FileIO):
            def write(self, data: Any, /) -> int:
                files.writes += 1
                if files._refused_from is not None and files.writes >= files._refused_from:
                    raise OSError(28, "No space left on device")
                return super().write(data)

        return io.BufferedWriter(Raw(uri, "x"))


def lines_in(directory: Path) -> int:
    return sum(len(segment.read_bytes().splitlines()) for segment in directory.iterdir())


def test_a_local_journal_has_each_answer_before_the_loop_waits_again(run: Run, tmp_path: Path) -> None:
    backend = FakeBackend(seconds=1.0)
    engine = engine_of(backend, max_in_flight=64, governor=Governor(requests_per_minute=60))
    files, rows = OpenedFiles(), many(5)
    record = Journal(f"{tmp_path}/", files=files).batch(rows, [row.text for row in rows])

    async def main() -> list[tuple[int, int]]:
        answering = asyncio.create_task(engine.answer(rows, record=record))
        await asyncio.sleep(0.1)
        seen = []
        for _ in rows:
            await asyncio.sleep(1.0)
            seen.append((lines_in(tmp_path), record.unstored))
        await answering
        return seen

    with closing(record):
        assert run(main()) == [(1, 0), (2, 0), (3, 0), (4, 0), (5, 0)]


def test_answers_of_one_iteration_of_the_loop_are_written_to_a_local_journal_together(
    run: Run, tmp_path: Path
) -> None:
    files, rows = OpenedFiles(), many(800)
    record = Journal(f"{tmp_path}/", files=files).batch(rows, [row.text for row in rows])
    with closing(record):
        governor = Governor(requests_per_minute=10**9)
        engine = engine_of(FakeBackend(seconds=0.0), max_in_flight=64, governor=governor)
        run(engine.answer(rows, record=record))
        assert record.unstored == 0
    assert files.writes <= 800 / 8 + 10


def test_a_full_disk_ends_the_batch_with_no_more_unstored_than_the_window(run: Run, tmp_path: Path) -> None:
    backend = FakeBackend(seconds=1.0)
    files, rows = OpenedFiles(refused_from=10), many(800)
    record = Journal(f"{tmp_path}/", files=files).batch(rows, [row.text for row in rows])
    with pytest.raises(OSError, match="No space left"):
        run(engine_of(backend, max_in_flight=16).answer(rows, record=record))
    stored = lines_in(tmp_path)
    assert 0 < stored < 800
    assert len(backend.sent) - stored == record.unstored <= 16
    with pytest.raises(JobFailedError, match=f"{record.unstored} answers of this batch were paid for"):
        record.close()


def test_a_record_that_fails_while_all_slots_wait_for_it_ends_the_batch(run: Run) -> None:
    backend = FakeBackend(seconds=0.01)
    record = SlowRecord(backend, seconds=100.0, uploads_before_error=1)
    with pytest.raises(OSError, match="No space left"):
        run(engine_of(backend, max_in_flight=8).answer(many(500), record=record))
    assert len(backend.sent) <= 2 * 8
    assert backend.in_flight == 0


def test_a_batch_that_fails_does_not_hold_the_others(run: Run) -> None:
    backend = FakeBackend(seconds=0.01)
    failing = SlowRecord(backend, seconds=1.0, uploads_before_error=0)
    engine = engine_of(backend, max_in_flight=8)

    async def main() -> list[Any]:
        return await asyncio.gather(
            engine.answer(many(100), record=failing), engine.answer(many(100)), return_exceptions=True
        )

    error, answered = run(main())
    assert isinstance(error, OSError)
    assert len(answered) == 100


def test_a_stopped_engine_stores_its_answers_while_requests_are_in_flight(run: Run) -> None:
    backend = FakeBackend(seconds=60.0)
    record = SlowRecord(backend, seconds=1.0)
    engine = engine_of(
        backend, max_in_flight=64, governor=Governor(requests_per_minute=60), request_timeout_seconds=90.0
    )

    async def main() -> tuple[int, int, Any]:
        answering = asyncio.create_task(engine.answer(many(200), record=record))
        await asyncio.sleep(64.5)  # the answers to the first requests, one a second
        engine.stop(JobCancelledError("stop"))
        in_flight = backend.in_flight
        await asyncio.sleep(2.0)
        seen = in_flight, sum(record.sizes)
        (error,) = await asyncio.gather(answering, return_exceptions=True)
        return *seen, error

    in_flight, stored, error = run(main())
    assert in_flight > 30
    assert 0 < stored < 8, "fewer than an object holds otherwise"
    assert isinstance(error, JobCancelledError)
    assert record.unstored == 0
