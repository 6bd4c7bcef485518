"""The journal of a stream that has no topic for it."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from airflow_provider_llmbeam.engine.journal.entry import MAX_LINE_BYTES, encode_entry
from airflow_provider_llmbeam.engine.outcome import Completion
from airflow_provider_llmbeam.engine.token_counts import NO_TOKENS
from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.pipeline.stream import segments
from airflow_provider_llmbeam.pipeline.stream.segments import SegmentJournal

PLACE = ("subscription", 0)
FINGERPRINT, OTHER = "ab" * 32, "cd" * 32


def entry(fingerprint: str = FINGERPRINT) -> bytes:
    answer = Completion(
        text="yes",
        model="m",
        finish_reason="stop",
        tokens=NO_TOKENS,
        attempts=1,
        latency_seconds=0.1,
        sent_at=1.0,
        answered_at=2.0,
    )
    return encode_entry(fingerprint, "job", answer)


@pytest.fixture
def run(tmp_path):
    """Returns a function that runs a coroutine, which is given what opens journals of one directory."""

    def ran(main):
        opened = []

        def journal(job: str = "job") -> SegmentJournal:
            opened.append(SegmentJournal(f"{tmp_path}/journal/", job))
            return opened[-1]

        async def whole() -> None:
            await main(journal)
            for each in opened:
                await each.close()

        asyncio.run(whole())

    return ran


@pytest.fixture
def clock(monkeypatch):
    """Returns a function that lets time pass for the journal."""
    now = [time.time()]
    monkeypatch.setattr(segments.time, "time", lambda: now[0])

    def wait(seconds):
        now[0] += seconds

    return wait


def test_an_answer_that_another_process_has_stored_is_found(run):
    async def main(journal_of) -> None:
        one, other = journal_of(), journal_of()
        assert await other.find(FINGERPRINT) is None
        assert await one.write(PLACE, FINGERPRINT, entry()) == 0
        found = await asyncio.gather(*map(other.find, (FINGERPRINT, OTHER)))
        assert [each and each.text for each in found] == ["yes", None]
        assert await journal_of("another job").find(FINGERPRINT) is None

    run(main)


def test_many_who_look_at_once_list_the_directory_once_or_twice(run, monkeypatch):
    async def main(journal_of) -> None:
        journal = journal_of()
        looks = []
        find = journal._journal.find
        monkeypatch.setattr(journal._journal, "find", lambda asked: looks.append(len(asked)) or find(asked))
        await asyncio.gather(*(journal.find(f"{number:064x}") for number in range(50)))
        assert sum(looks) == 50
        assert len(looks) <= 2

    run(main)


def test_a_segment_is_deleted_some_time_after_its_last_message_is_acknowledged(run, tmp_path, clock):
    files = tmp_path / "journal"

    async def main(journal_of) -> None:
        journal = journal_of()
        first = await journal.write(PLACE, FINGERPRINT, entry())
        second = await journal.write(PLACE, OTHER, entry(OTHER))
        assert first == second
        clock(61)
        assert await journal.write(PLACE, OTHER, entry(OTHER)) != first
        journal.end([first])
        clock(700)
        await journal.write(PLACE, OTHER, entry(OTHER))
        assert len([*files.iterdir()]) == 3, "a message of the first segment is not acknowledged"
        journal.end([second])
        clock(500)
        await journal.write(PLACE, OTHER, entry(OTHER))
        assert await journal.find(FINGERPRINT) is not None, "its acknowledgement may be lost"
        clock(200)
        await journal.write(PLACE, OTHER, entry(OTHER))
        assert await journal.find(FINGERPRINT) is None

    run(main)


def test_looks_keep_an_interval(run, monkeypatch):
    async def main(journal_of) -> None:
        journal = journal_of()
        looks = []
        find = journal._journal.find
        monkeypatch.setattr(journal._journal, "find", lambda asked: looks.append(time.monotonic()) or find(asked))
        for number in range(3):
            await journal.find(f"{number:064x}")
        assert min(later - earlier for earlier, later in itertools.pairwise(looks)) > 0.9 * segments._LOOK_SECONDS

    run(main)


def test_a_segment_that_is_deleted_takes_no_memory(run, clock):
    async def main(journal_of) -> None:
        one, other = journal_of(), journal_of()
        number = await one.write(PLACE, FINGERPRINT, entry())
        await other.find(OTHER)
        one.end([number])
        clock(800)
        await one.write(PLACE, OTHER, entry(OTHER))  # completes it
        clock(61)
        await one.write(PLACE, OTHER, entry(OTHER))  # deletes it
        await other.find("ef" * 32)
        assert len(one._journal._indexes) == len(other._journal._indexes) == 2

    run(main)


def test_segments_of_a_process_that_was_killed_are_deleted_after_a_week(run, clock):
    async def main(journal_of) -> None:
        await journal_of().write(PLACE, FINGERPRINT, entry())
        for days, is_kept in ((6, True), (2, False)):
            clock(days * 86_400)
            await journal_of().write(PLACE, OTHER, entry(OTHER))
            assert (await journal_of().find(FINGERPRINT) is not None) is is_kept

    run(main)


def test_an_entry_that_is_too_large_is_not_stored_and_a_directory_that_is_gone_is_an_error(run, tmp_path):
    async def main(journal_of) -> None:
        journal = journal_of()
        assert await journal.write(PLACE, FINGERPRINT, b"x" * (MAX_LINE_BYTES + 1)) is None
        (tmp_path / "journal").rmdir()
        (tmp_path / "journal").write_bytes(b"")
        with pytest.raises(JobFailedError, match="cannot be used"):
            await journal.write(PLACE, FINGERPRINT, entry())
        (tmp_path / "journal").unlink()

    run(main)
