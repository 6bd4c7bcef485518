from __future__ import annotations

import threading
from contextlib import closing
from io import FileIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.journal.entry import read_segment
from airflow_provider_llmbeam.engine.journal.journal import BatchJournal, Journal
from airflow_provider_llmbeam.engine.outcome import Failure
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.token_counts import Tokens
from airflow_provider_llmbeam.exceptions import JobFailedError
from tests.files import LocalFiles
from tests.hostile import examples
from tests.outcomes import completion

pytestmark = pytest.mark.promise(2)


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


@pytest.fixture
def journal(tmp_path: Path):
    opened = batch_of(tmp_path, *TEXTS)
    yield opened
    opened.close()


def read(directory: Path) -> dict[str, str]:
    """Returns the entries that another process can read now."""
    found: dict[str, str] = {}
    for segment in directory.glob("*.jsonl"):
        entries = read_segment(str(segment), LocalFiles().open)
        found.update((entry.fingerprint, entry.outcome.text) for entry in entries)
    return found


def test_an_answer_can_be_read_as_soon_as_it_is_stored(journal: BatchJournal, tmp_path: Path) -> None:
    for number in range(3):
        journal.finished(Prompt(f"prompt {number}"), completion(f"answer {number}"))
        assert journal.unstored == 1
        journal.store()
        assert journal.unstored == 0
        assert len(read(tmp_path)) == number + 1
    assert read(tmp_path)["prompt 2"] == "answer 2"


REFUSAL = Failure(kind="truncated", message="cut", attempts=1, tokens=Tokens(7), answered_at=2.0)


def test_a_refused_answer_is_known_to_the_next_batch(tmp_path: Path) -> None:
    with closing(batch_of(tmp_path, "a")) as first:
        first.finished(Prompt("a"), REFUSAL)
    assert batch_of(tmp_path, "a", "b").earlier == [REFUSAL, None]


@pytest.mark.parametrize("first_is_answer", [True, False])
def test_an_answer_counts_more_than_a_refusal_before_or_after_it(tmp_path: Path, first_is_answer: bool) -> None:
    outcomes = [completion(), REFUSAL] if first_is_answer else [REFUSAL, completion()]
    for outcome in outcomes:
        with closing(batch_of(tmp_path, "a")) as batch:
            batch.finished(Prompt("a"), outcome)
    assert batch_of(tmp_path, "a").earlier == [completion()]


def test_a_failure_is_not_written_so_that_it_is_retried(journal: BatchJournal, tmp_path: Path) -> None:
    journal.finished(Prompt("a"), Failure(kind="timeout", message="no"))
    assert list(tmp_path.iterdir()) == []


def test_requests_and_429s_are_not_written(journal: BatchJournal, tmp_path: Path) -> None:
    journal.sent()
    journal.rejected(1.0)
    assert list(tmp_path.iterdir()) == []


def test_a_closed_segment_is_not_written_to_again(journal: BatchJournal, tmp_path: Path) -> None:
    journal.finished(Prompt("a"), completion())
    journal.close()
    journal.finished(Prompt("b"), completion())
    journal.store()
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
            journal.store()

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
    assert batch_of(tmp_path, "d", "b").earlier == [None, completion("answer to b")], "cut in another way"


@given(st.data())
@examples(0.4)
def test_work_repeated_in_any_order_and_any_cut_finds_every_recorded_answer(data: Any) -> None:
    with TemporaryDirectory() as folder:
        texts = [f"{number:02x}" for number in data.draw(st.permutations(range(24)))]
        recorded: set[str] = set()
        for _ in range(3):
            cut = data.draw(st.integers(1, len(texts)))
            process = Journal(f"{folder}/", files=LocalFiles())  # a process that was not there before
            for start in range(0, len(texts), cut):
                part = texts[start : start + cut]
                with closing(process.batch([Prompt(text) for text in part], part)) as batch:
                    found = {text for text, known in zip(part, batch.earlier, strict=True) if known is not None}
                    assert found == recorded & {*part}
                    for text in data.draw(st.lists(st.sampled_from(part), unique=True)):
                        batch.finished(Prompt(text), completion())
                        recorded.add(text)
            texts = data.draw(st.permutations(texts))


class CountingFiles(LocalFiles):
    def __init__(self) -> None:
        self.opened: list[str] = []

    def open(self, uri: str) -> IO[bytes]:
        self.opened.append(uri)
        return super().open(uri)


def record(directory: Path, *texts: str, **changes: Any) -> None:
    """Records answers as another process would."""
    with closing(batch_of(directory, *texts, **changes)) as batch:
        for text in texts:
            batch.finished(Prompt(text), completion())


def opened_for(directory: Path, *batches: tuple[str, ...], **changes: Any) -> list[int]:
    """Returns how many segments one process has opened after each batch."""
    files = CountingFiles()
    process, counts = Journal(f"{directory}/", files=files, **changes), []
    for texts in batches:
        process.batch([Prompt(text) for text in texts], texts).close()
        counts.append(len(files.opened))
    return counts


def test_a_segment_of_other_shards_is_not_opened(tmp_path: Path) -> None:
    record(tmp_path, "00aa")
    assert opened_for(tmp_path, ("01aa",), ("ff",)) == [0, 0]


def test_a_segment_without_an_answer_of_the_batch_is_opened_once(tmp_path: Path) -> None:
    record(tmp_path, "00aa")
    assert opened_for(tmp_path, ("00bb",), ("00cc", "00dd")) == [1, 1]


def test_a_segment_that_has_grown_is_read_again(tmp_path: Path) -> None:
    growing = batch_of(tmp_path, "00aa", "00bb")
    growing.finished(Prompt("00aa"), completion())
    growing.store()
    process = Journal(f"{tmp_path}/", files=LocalFiles())
    assert process.batch([Prompt("00bb")], ["00bb"]).earlier == [None]
    growing.finished(Prompt("00bb"), completion())
    growing.store()
    assert process.batch([Prompt("00bb")], ["00bb"]).earlier == [completion()]
    growing.close()


class PositionedFiles(LocalFiles):
    """Notes how many bytes are read of each file."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def open(self, uri: str) -> IO[bytes]:
        notes = self.read

        class File(FileIO):
            def readinto(self, buffer: Any) -> int:
                count = super().readinto(buffer) or 0
                notes[-1] += count
                return count

        notes.append(0)
        return cast("IO[bytes]", File(uri))


def test_what_is_added_to_a_segment_is_read_alone_unless_an_earlier_answer_is_asked_for(tmp_path: Path) -> None:
    texts = [f"00{number:02x}" for number in range(8)]
    growing, files = batch_of(tmp_path, *texts), PositionedFiles()
    process = Journal(f"{tmp_path}/", files=files)
    line = 0
    for number, text in enumerate(texts[:6]):
        growing.finished(Prompt(text), completion())
        growing.store()
        (segment,) = tmp_path.iterdir()
        line = line or segment.stat().st_size
        assert process.find(["00ff"]) == {}
        assert files.read[-1] == line, f"look {number}"
    assert process.find([texts[0], texts[5]]) == dict.fromkeys((texts[0], texts[5]), completion())
    with segment.open("ab") as file:  # an entry that is not written as a whole yet
        content = segment.read_bytes()[-line:].replace(texts[5].encode(), texts[6].encode())
        file.write(content[: line // 2])
        file.flush()
        assert process.find([texts[6]]) == {}
        file.write(content[line // 2 :])
    assert process.find([texts[6]]) == {texts[6]: completion()}
    growing.close()


def test_a_segment_that_another_process_deletes_is_forgotten_also_between_the_list_and_its_opening(
    tmp_path: Path,
) -> None:
    class Vanishing(LocalFiles):
        is_late = False

        def open(self, uri: str) -> IO[bytes]:
            if self.is_late:
                Path(uri).unlink()
            return super().open(uri)

    record(tmp_path, "00aa")
    record(tmp_path, "00bb")
    process = Journal(f"{tmp_path}/", files=(files := Vanishing()))
    assert process.find(["00cc"]) == {}
    assert len(process._indexes) == 2
    process.delete([next(iter(process._indexes))])
    assert len(process._indexes) == len([*tmp_path.iterdir()]) == 1
    files.is_late = True
    assert process.find(["00aa", "00bb"]) == {}
    assert process.find(["00aa", "00bb"]) == {}
    assert process._indexes == {}


def test_an_error_of_a_segment_that_is_there_is_raised(tmp_path: Path) -> None:
    class Broken(LocalFiles):
        def open(self, uri: str) -> IO[bytes]:
            raise OSError(5, "Input/output error")

    record(tmp_path, "00aa")
    with pytest.raises(OSError, match="Input/output"):
        Journal(f"{tmp_path}/", files=Broken()).find(["00aa"])


def test_a_process_does_not_open_what_it_wrote_itself_for_other_prompts(tmp_path: Path) -> None:
    files = CountingFiles()
    process = Journal(f"{tmp_path}/", files=files)
    with closing(process.batch([Prompt("00aa")], ["00aa"])) as batch:
        batch.finished(Prompt("00aa"), completion())
    assert process.batch([Prompt("00bb")], ["00bb"]).earlier == [None]
    assert files.opened == []
    assert process.batch([Prompt("00aa")], ["00aa"]).earlier == [completion()]


def test_segments_of_other_jobs_or_from_before_the_launch_are_not_opened(tmp_path: Path) -> None:
    record(tmp_path, "00aa", job="another")
    record(tmp_path, "00aa", now=lambda: 999.0)
    assert opened_for(tmp_path, ("00aa",), since=1_000.0) == [0]
    record(tmp_path, "00aa", now=lambda: 1_000.0)
    assert opened_for(tmp_path, ("00aa",), since=1_000.0) == [1]


def test_an_expired_answer_is_not_found(tmp_path: Path) -> None:
    record(tmp_path, "00aa")
    assert batch_of(tmp_path, "00aa", oldest_at=101.5).earlier == [None]


class NoDescriptors(LocalFiles):
    """A filesystem that cannot open a file for a while, as a process with too many open files."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    def create(self, uri: str) -> IO[bytes]:
        if self.failures:
            self.failures -= 1
            raise OSError(24, "Too many open files")
        return super().create(uri)


def test_an_answer_that_could_not_be_written_is_written_with_the_next_one(tmp_path: Path) -> None:
    batch = Journal(f"{tmp_path}/", files=NoDescriptors(1)).batch([Prompt("a"), Prompt("b")], ["a", "b"])
    batch.finished(Prompt("a"), completion())
    with pytest.raises(OSError, match="Too many open files"):
        batch.store()
    batch.finished(Prompt("b"), completion())
    batch.store()
    batch.close()
    assert batch_of(tmp_path, "a", "b").earlier == [completion(), completion()]


def test_the_last_answers_are_written_when_the_batch_is_closed(tmp_path: Path) -> None:
    batch = Journal(f"{tmp_path}/", files=NoDescriptors(1)).batch([Prompt("a")], ["a"])
    batch.finished(Prompt("a"), completion())
    with pytest.raises(OSError, match="Too many open files"):
        batch.store()
    batch.close()
    assert batch_of(tmp_path, "a").earlier == [completion()]


def test_a_batch_whose_segment_cannot_be_opened_ends_before_its_first_request(tmp_path: Path) -> None:
    batch = Journal(f"{tmp_path}/", files=NoDescriptors(1)).batch([Prompt("a")], ["a"])
    with pytest.raises(JobFailedError, match=r"Too many open files.*Nothing of this batch was sent"):
        batch.open()


def test_an_opened_segment_needs_no_other_descriptor(tmp_path: Path) -> None:
    files = NoDescriptors(0)
    batch = Journal(f"{tmp_path}/", files=files).batch([Prompt("a")], ["a"])
    batch.open()
    files.failures = 9
    batch.finished(Prompt("a"), completion())
    batch.close()
    assert batch_of(tmp_path, "a").earlier == [completion()]


def test_answers_that_cannot_be_recorded_are_counted_in_the_error(tmp_path: Path) -> None:
    batch = Journal(f"{tmp_path}/", files=NoDescriptors(9)).batch([Prompt("a"), Prompt("b")], ["a", "b"])
    for text in ("a", "b"):
        batch.finished(Prompt(text), completion())
        with pytest.raises(OSError, match="Too many open files"):
            batch.store()
    with pytest.raises(JobFailedError, match=r"Too many open files.*2 answers of this batch were paid for"):
        batch.close()


def test_an_answer_of_another_form_than_the_job_needs_is_requested_again(tmp_path: Path) -> None:
    with closing(batch_of(tmp_path, "a", "b")) as first:
        first.finished(Prompt("a"), completion("good"))
        first.finished(Prompt("b"), completion("bad"))
    second = batch_of(tmp_path, "a", "b", accepts=lambda found: found.text == "good")
    assert second.earlier == [completion("good"), None]
