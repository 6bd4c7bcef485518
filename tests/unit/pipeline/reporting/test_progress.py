from __future__ import annotations

import logging
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmbeam_sandbox import Sandbox
from waiting import until

from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.reporting import progress as progress_module
from airflow_provider_llmbeam.pipeline.reporting.progress import (
    PROGRESS,
    Progress,
    ProgressReader,
    ProgressWriter,
    publish_progress,
    show_progress,
    write_progress_soon,
)
from airflow_provider_llmbeam.spec.protocol.counts import NANO, Counts, progress_line


def test_a_progress_line_has_the_current_counts() -> None:
    now = Counts(2000, 400, 50, 540, 10, requests=700, rejections=7, input_tokens=1_234_000, output_tokens=567)
    assert progress_line(now, 12.5) == (
        "rows 1,000/2,000 (50%) · 12.5 rows/s · 1,234,567 tokens · 7 × 429 (1.0%) · 10 failed · ETA 1 min 20 s"
    )


def test_before_the_first_row_the_line_has_no_percentage() -> None:
    assert progress_line(Counts(), 0.0) == "rows 0/0 · 0.0 rows/s · 0 tokens · 0 × 429 · 0 failed"


@pytest.mark.parametrize(("now", "rate"), [(Counts(rows=9, answered=9), 1.0), (Counts(rows=9), 0.0)])
def test_there_is_no_eta_when_all_is_done_or_nothing_moves(now: Counts, rate: float) -> None:
    assert "ETA" not in progress_line(now, rate)


@pytest.mark.parametrize(
    ("left", "eta"),
    [
        (1, "1 s"),
        (59, "59 s"),
        (60, "1 min 00 s"),
        (61, "1 min 01 s"),
        (3600, "1 h 00 min"),
        (36_660, "10 h 11 min"),
    ],
)
def test_an_eta_has_two_units(left: int, eta: str) -> None:
    assert progress_line(Counts(rows=left), 1.0).endswith(f" · ETA {eta}")


counts = st.integers(0, 1000)


@given(st.builds(Counts, counts, counts, counts, counts, counts))
def test_the_rows_done_never_exceed_all_rows(now: Counts) -> None:
    assert 0 <= now.done <= now.rows


def test_a_snapshot_does_not_change() -> None:
    progress = Progress()
    progress.add(Counts(rows=3))
    before = progress.snapshot()
    progress.add(Counts(rows=1))
    assert (before.rows, progress.snapshot().rows) == (3, 4)


def test_the_next_job_starts_counting_at_zero() -> None:
    progress = Progress()
    progress.add(Counts(answered=5))
    progress.reset()
    assert progress.snapshot() == Counts()


def test_threads_can_count_concurrently() -> None:
    progress = Progress()

    def count() -> None:
        for _ in range(1000):
            progress.add(Counts(input_tokens=1))

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert progress.snapshot().input_tokens == 4000


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def lines():
    log, handler = logging.getLogger("airflow_provider_llmbeam.pipeline.reporting.progress"), Lines()
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield handler.lines
    log.removeHandler(handler)
    log.setLevel(level)


def test_a_log_gets_a_line_on_each_change_and_one_at_the_end(lines: list[str]) -> None:
    with show_progress(interval_seconds=0.01):
        PROGRESS.add(Counts(rows=2))
        until(lambda: lines, "there is a line")
        PROGRESS.add(Counts(answered=2))
    assert lines[0].startswith("rows 0/2 (0%)")
    assert lines[-1].startswith("rows 2/2 (100%)")
    assert len(lines) == len(set(lines))


@pytest.mark.parametrize(
    ("ended", "is_shown"),
    [
        (Counts(rows=9, failed=2), False),
        (Counts(rows=9, duplicates=2), False),
        (Counts(rows=9, failed=9), True),
        (Counts(rows=9, requests=1), True),
        (Counts(rows=9, resumed=1), True),
    ],
    ids=str,
)
def test_a_job_that_is_refused_after_its_rows_were_read_has_no_last_line(
    lines: list[str], ended: Counts, is_shown: bool
) -> None:
    with show_progress(interval_seconds=60):
        PROGRESS.add(ended)
    assert bool(lines) == is_shown


def test_rows_that_are_known_already_have_no_rate() -> None:
    known = Counts(rows=9, resumed=8, failed=1)
    assert progress_line(known, 12.5) == "rows 9/9 (100%) · 1 failed"


def test_a_line_has_the_cost_if_the_price_is_known(lines: list[str]) -> None:
    with show_progress(interval_seconds=60):
        PROGRESS.add(
            Counts(rows=1, answered=1, input_tokens=2_000_000, output_tokens=1_000_000, cost_nano_usd=12 * NANO)
        )
    with show_progress(interval_seconds=60):
        PROGRESS.add(Counts(rows=1, answered=1, input_tokens=2_000_000, output_tokens=1_000_000))
    known, unknown = lines
    assert "3,000,000 tokens · $12.00 · " in known
    assert "$" not in unknown


def test_a_small_cost_is_not_shown_as_nothing() -> None:
    assert " · 475 tokens · $0.00014 · " in progress_line(Counts(input_tokens=475, cost_nano_usd=142_500), 1.0)


def test_the_counts_of_other_processes_are_added_to_every_line(lines: list[str]) -> None:
    with show_progress(interval_seconds=0.01, others=lambda is_final: Counts(rows=4, answered=3 + is_final)):
        PROGRESS.add(Counts(rows=2, answered=2))
        until(lambda: any(line.startswith("rows 5/6 (83%)") for line in lines), "a line has all counts")
    assert lines[-1].startswith("rows 6/6 (100%)")


def test_counts_are_added_and_subtracted_field_by_field() -> None:
    one, other = Counts(*range(1, 11)), Counts(*range(10, 101, 10))
    assert one + other == Counts(*range(11, 111, 11))
    assert one + other - one == other


def test_a_job_that_fails_leaves_no_thread_behind(lines: list[str]) -> None:
    with pytest.raises(ZeroDivisionError), show_progress(interval_seconds=60):
        raise ZeroDivisionError
    assert "progress" not in {thread.name for thread in threading.enumerate()}
    assert lines == []


def test_a_progress_log_starts_counting_at_zero() -> None:
    PROGRESS.add(Counts(rows=7))
    with show_progress(interval_seconds=60):
        assert PROGRESS.snapshot() == Counts()


@pytest.fixture(params=["local", "gs"])
def folder(
    request: pytest.FixtureRequest, credentials: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    if request.param == "local":
        yield f"{tmp_path}/progress/"
        return
    with Sandbox(buckets=("rows",)) as sandbox:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", sandbox.authorized_url)
        yield "gs://rows/progress/"


@pytest.fixture(autouse=True)
def _this_process_is_a_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    PROGRESS.reset()
    monkeypatch.setattr(progress_module, "_writer", None)
    yield
    if progress_module._writer is not None:
        progress_module._writer.close()
    PROGRESS.reset()


def work(prefix: str | None, counts: Counts) -> None:
    """Counts as a worker process does that has counted something else before."""
    assert prefix is not None
    writer = ProgressWriter(prefix)
    PROGRESS.add(counts)
    writer.close()


def test_the_counts_of_all_workers_are_added_up_and_their_objects_deleted_at_the_end(folder: str) -> None:
    with ProgressReader(folder) as reader:
        assert reader.counts(is_final=False) == Counts()
        work(reader.prefix, Counts(rows=300))
        work(reader.prefix, Counts(answered=120, requests=125, rejections=5))
        work(reader.prefix, Counts(answered=80, requests=80))
        assert reader.counts(is_final=True) == Counts(rows=300, answered=200, requests=205, rejections=5)
        assert len(storage.match(f"{folder}*")) == 3
    assert storage.match(f"{folder}*") == []


def test_a_worker_replaces_its_object_as_its_counts_grow(folder: str) -> None:
    with ProgressReader(folder) as reader:
        writer = ProgressWriter(reader.prefix or "")
        for _ in range(3):
            PROGRESS.add(Counts(rows=100))
            writer.write()
        assert reader.counts(is_final=True) == Counts(rows=300)
        assert len(storage.match(f"{folder}*")) == 1
        writer.close()


def test_the_objects_of_an_earlier_run_are_deleted_and_its_late_workers_ignored(folder: str) -> None:
    earlier = ProgressReader(folder)
    work(earlier.prefix, Counts(rows=7))
    with ProgressReader(folder) as reader:
        assert storage.match(f"{folder}*") == []
        work(earlier.prefix, Counts(rows=9))  # a worker that outlived its launcher
        work(reader.prefix, Counts(rows=1))
        assert reader.counts(is_final=True) == Counts(rows=1)


def test_objects_are_read_every_few_seconds_and_at_the_end(
    tmp_path: Path, storage_calls: Callable[[str], list[str]]
) -> None:
    calls = storage_calls("match")
    with ProgressReader(f"{tmp_path}/") as reader:
        for is_final in (False, False, False, True):
            reader.counts(is_final)
    # The earlier objects, the first look, the last one, and those to delete.
    assert len(calls) == 4


def test_without_other_processes_no_request_is_sent(storage_calls: Callable[[str], list[str]]) -> None:
    calls = storage_calls("match")
    with ProgressReader(None) as reader:
        assert reader.counts(is_final=True) == Counts()
    assert (reader.prefix, calls) == (None, [])


def test_a_batch_that_ends_is_written_soon_and_a_hundred_that_end_are_not_each(
    tmp_path: Path, storage_calls: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_module, "WRITE_SECONDS", 3600.0)
    monkeypatch.setattr(progress_module, "MIN_WRITE_SECONDS", 3600.0)
    calls = storage_calls("replace")
    publish_progress(f"{tmp_path}/run-")
    for _ in range(100):
        PROGRESS.add(Counts(answered=1))
        write_progress_soon()
    until(lambda: calls, "the first batch is written")
    PROGRESS.add(Counts(answered=1))
    write_progress_soon()
    assert len(calls) == 1
    assert progress_module._writer is not None
    progress_module._writer.close()
    assert len(calls) == 2


def test_counts_are_written_again_and_again_while_a_batch_lasts(
    tmp_path: Path, storage_calls: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_module, "WRITE_SECONDS", 0.01)
    monkeypatch.setattr(progress_module, "MIN_WRITE_SECONDS", 0.0)
    calls = storage_calls("replace")
    publish_progress(f"{tmp_path}/run-")
    for number in range(3):
        PROGRESS.add(Counts(answered=1))
        until(lambda: len(calls) > number, "the counts are written")  # noqa: B023
    assert len(set(calls)) == 1


def test_a_process_that_shows_its_counts_writes_none(
    storage_calls: Callable[[str], list[str]], tmp_path: Path
) -> None:
    """Workers on threads of the launcher: Prism and Flink with LOOPBACK."""
    calls = storage_calls("replace")
    with show_progress(interval_seconds=60):
        publish_progress(f"{tmp_path}/run-")
        PROGRESS.add(Counts(rows=1))
        write_progress_soon()
    publish_progress(None)
    assert (progress_module._writer, calls) == (None, [])


def test_a_worker_of_a_later_job_writes_the_counts_of_that_job_alone(tmp_path: Path) -> None:
    first, second = ProgressReader(f"{tmp_path}/1/"), ProgressReader(f"{tmp_path}/2/")
    publish_progress(first.prefix)
    PROGRESS.add(Counts(rows=3))
    publish_progress(second.prefix)
    PROGRESS.add(Counts(rows=5))
    publish_progress(None)
    publish_progress(second.prefix)
    assert progress_module._writer is not None
    progress_module._writer.close()
    assert [reader.counts(is_final=True).rows for reader in (first, second)] == [3, 5]


def test_objects_and_their_directory_are_private(tmp_path: Path) -> None:
    work(f"{tmp_path}/progress/run-", Counts(rows=1))
    (written,) = (tmp_path / "progress").iterdir()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "progress", written)] == [0o700, 0o600]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"rows": "many"}', "\x00"])
def test_an_object_without_counts_is_passed_over(tmp_path: Path, content: str) -> None:
    with ProgressReader(f"{tmp_path}/") as reader:
        Path(f"{reader.prefix}0.json").write_text(content)
        work(reader.prefix, Counts(rows=2))
        Path(f"{reader.prefix}z.json").write_text(content)
        assert reader.counts(is_final=True) == Counts(rows=2)


def test_a_directory_that_cannot_be_used_fails_neither_worker_nor_launcher(tmp_path: Path) -> None:
    (tmp_path / "progress").write_text("a file")
    with ProgressReader(f"{tmp_path}/progress/") as reader:
        work(reader.prefix, Counts(rows=2))
        assert reader.counts(is_final=True) == Counts()


@pytest.fixture
def storage_calls(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """Returns a function that records the first argument of each call of a function of `storage`."""

    def record(name: str) -> list[str]:
        calls: list[str] = []
        real = getattr(storage, name)

        def called(first: str, *rest: object) -> object:
            calls.append(first)
            return real(first, *rest)

        monkeypatch.setattr(storage, name, called)
        return calls

    return record


def test_readers_elsewhere_know_the_addresses_of_a_run_with_a_name(folder: str) -> None:
    assert ProgressReader(folder, "5225").prefix == f"{folder}5225-"
