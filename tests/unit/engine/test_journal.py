from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from typing import IO, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.journal import BatchJournal, Entry, Journal, encode_entry, read_entries
from airflow_provider_llmbeam.engine.outcome import Completion, Failure
from airflow_provider_llmbeam.engine.prompt import Prompt

any_text = st.text(st.characters(exclude_categories=()), max_size=30)
any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=6,
)
completions = st.builds(
    Completion,
    text=any_text,
    parsed=any_json,
    model=any_text,
    finish_reason=any_text,
    input_tokens=st.integers(0),
    output_tokens=st.integers(0),
    attempts=st.integers(1, 9),
    rejections=st.integers(0, 9),
    latency_seconds=st.floats(0, 1e6),
    sent_at=st.floats(0, 1e10),
    answered_at=st.floats(0, 1e10),
)


def completion(text: str = "hi") -> Completion:
    return Completion(
        text=text,
        model="m",
        finish_reason="stop",
        input_tokens=1,
        output_tokens=1,
        attempts=1,
        latency_seconds=0.1,
        sent_at=1.0,
        answered_at=2.0,
    )


class LocalFiles:
    def create(self, uri: str) -> IO[bytes]:
        return Path(uri).open("xb")

    def open(self, uri: str) -> IO[bytes]:
        return Path(uri).open("rb")

    def match(self, pattern: str) -> list[str]:
        return [str(path) for path in Path(pattern).parent.glob(Path(pattern).name)]


def batch_of(directory: Path, *texts: str, **changes: Any) -> BatchJournal:
    """Returns a batch of prompts, each of which is its own fingerprint."""
    return Journal(f"{directory}/", files=LocalFiles(), **changes).batch([Prompt(text) for text in texts], texts)


#: Fingerprints of the batch that `journal` records.
TEXTS = (
    "a",
    "b",
    "c",
    *(f"prompt {number}" for number in range(9)),
    *(f"{thread}-{number}" for thread in range(4) for number in range(50)),
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def journal(tmp_path: Path, clock: Clock):
    opened = batch_of(tmp_path, *TEXTS, clock=clock)
    yield opened
    opened.close()


def read(directory: Path) -> dict[str, str]:
    """Returns the entries that another process can read now."""
    found: dict[str, str] = {}
    for segment in directory.glob("*.jsonl"):
        with segment.open("rb") as lines:
            found.update((entry.fingerprint, entry.completion.text) for entry in read_entries(iter(lines)))
    return found


@given(any_text, completions)
def test_an_answer_round_trips_through_the_journal(fingerprint: str, written: Completion) -> None:
    line = encode_entry(fingerprint, "nightly", written)
    assert line.count(b"\n") == 1
    assert list(read_entries(iter([line]))) == [Entry(fingerprint, "nightly", written)]


@given(completions, st.data())
def test_an_incomplete_last_line_is_skipped_and_the_rest_is_read(torn: Completion, data: Any) -> None:
    whole = encode_entry("first", "j", completion())
    line = encode_entry("second", "j", torn)
    cut = data.draw(st.integers(1, len(line) - 2))
    assert list(read_entries(iter([whole, line[:cut]]))) == [Entry("first", "j", completion())]


@pytest.mark.parametrize(
    "line", [b"\n", b"\x00\x00\n", b"3\n", b"null\n", b"[]\n", b"{}\n", b'{"fingerprint": "a"}\n', b'"text"\n']
)
def test_a_line_that_is_not_an_entry_is_skipped(line: bytes) -> None:
    entries = [encode_entry("a", "j", completion()), line, encode_entry("b", "j", completion())]
    assert [entry.fingerprint for entry in read_entries(iter(entries))] == ["a", "b"]


def test_an_entry_of_a_newer_version_is_skipped() -> None:
    line = encode_entry("a", "j", completion()).replace(b'"text"', b'"body"')
    assert list(read_entries(iter([line]))) == []


def test_an_answer_can_be_read_as_soon_as_it_arrived(journal: BatchJournal, tmp_path: Path) -> None:
    for number in range(3):
        journal.finished(Prompt(f"prompt {number}"), completion(f"answer {number}"))
        assert len(read(tmp_path)) == number + 1
    assert read(tmp_path)["prompt 2"] == "answer 2"


def test_a_failure_is_not_written_so_that_it_is_retried(journal: BatchJournal, tmp_path: Path) -> None:
    journal.finished(Prompt("a"), Failure(kind="blocked", message="no"))
    assert list(tmp_path.iterdir()) == []


def test_requests_and_429s_are_not_written(journal: BatchJournal, tmp_path: Path) -> None:
    journal.sent()
    journal.rejected(1.0)
    assert list(tmp_path.iterdir()) == []


def test_a_segment_ends_after_its_time(journal: BatchJournal, tmp_path: Path, clock: Clock) -> None:
    journal.finished(Prompt("a"), completion())
    clock.now += BatchJournal.SEGMENT_SECONDS
    journal.finished(Prompt("b"), completion())
    assert len(list(tmp_path.iterdir())) == 1
    clock.now += 0.01
    journal.finished(Prompt("c"), completion())
    assert len(list(tmp_path.iterdir())) == 2
    assert read(tmp_path).keys() == {"a", "b", "c"}


def test_a_closed_segment_is_not_written_to_again(journal: BatchJournal, tmp_path: Path) -> None:
    journal.finished(Prompt("a"), completion())
    journal.close()
    journal.finished(Prompt("b"), completion())
    assert len(list(tmp_path.iterdir())) == 2


def test_closing_twice_or_before_the_first_answer_does_nothing(journal: BatchJournal, tmp_path: Path) -> None:
    journal.close()
    journal.close()
    assert list(tmp_path.iterdir()) == []


def test_two_processes_never_write_to_one_segment(tmp_path: Path) -> None:
    both = [batch_of(tmp_path, "0", "1") for _ in "ab"]
    for number, journal in enumerate(both):
        journal.finished(Prompt(str(number)), completion())
        journal.close()
    assert len(list(tmp_path.iterdir())) == 2


def test_threads_share_a_segment_and_every_line_is_complete(journal: BatchJournal, tmp_path: Path) -> None:
    def write(thread: int) -> None:
        for number in range(50):
            journal.finished(Prompt(f"{thread}-{number}"), completion("x" * 500))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read(tmp_path)) == 200
    assert len(list(tmp_path.iterdir())) == 1


def test_a_batch_finds_the_answers_recorded_by_its_previous_try(tmp_path: Path) -> None:
    with closing(batch_of(tmp_path, "a", "b", "c")) as first:
        assert first.earlier == [None, None, None]
        first.finished(Prompt("b"), completion("answer to b"))
    with closing(batch_of(tmp_path, "a", "b", "c")) as second:
        assert second.earlier == [None, completion("answer to b"), None]
        second.finished(Prompt("a"), completion("answer to a"))
    assert batch_of(tmp_path, "a", "b", "c").earlier[:2] == [
        completion("answer to a"),
        completion("answer to b"),
    ]
    assert batch_of(tmp_path, "a", "b").earlier == [None, None], "another batch"
