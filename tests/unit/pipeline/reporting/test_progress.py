from __future__ import annotations

import logging
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import until

from airflow_provider_llmbeam.pipeline.reporting.progress import PROGRESS, Progress, shown_progress
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
    with shown_progress(interval_seconds=0.01):
        PROGRESS.add(Counts(rows=2))
        until(lambda: lines, "there is a line")
        PROGRESS.add(Counts(answered=2))
    assert lines[0].startswith("rows 0/2 (0%)")
    assert lines[-1].startswith("rows 2/2 (100%)")
    assert len(lines) == len(set(lines))


def test_a_line_has_the_cost_if_the_price_is_known(lines: list[str]) -> None:
    with shown_progress(interval_seconds=60):
        PROGRESS.add(Counts(rows=1, input_tokens=2_000_000, output_tokens=1_000_000, cost_nano_usd=12 * NANO))
    with shown_progress(interval_seconds=60):
        PROGRESS.add(Counts(rows=1, input_tokens=2_000_000, output_tokens=1_000_000))
    known, unknown = lines
    assert "3,000,000 tokens · $12.00 · " in known
    assert "$" not in unknown


def test_a_small_cost_is_not_shown_as_nothing() -> None:
    assert " · 475 tokens · $0.00014 · " in progress_line(Counts(input_tokens=475, cost_nano_usd=142_500), 1.0)


def test_the_counts_of_other_processes_are_added_to_every_line(lines: list[str]) -> None:
    with shown_progress(interval_seconds=0.01, others=lambda is_final: Counts(rows=4, answered=3 + is_final)):
        PROGRESS.add(Counts(rows=2, answered=2))
        until(lambda: any(line.startswith("rows 5/6 (83%)") for line in lines), "a line has all counts")
    assert lines[-1].startswith("rows 6/6 (100%)")


def test_counts_are_added_and_subtracted_field_by_field() -> None:
    one, other = Counts(*range(1, 11)), Counts(*range(10, 101, 10))
    assert one + other == Counts(*range(11, 111, 11))
    assert one + other - one == other


def test_a_job_that_fails_leaves_no_thread_behind(lines: list[str]) -> None:
    with pytest.raises(ZeroDivisionError), shown_progress(interval_seconds=60):
        raise ZeroDivisionError
    assert "progress" not in {thread.name for thread in threading.enumerate()}
    assert lines == []


def test_a_progress_log_starts_counting_at_zero() -> None:
    PROGRESS.add(Counts(rows=7))
    with shown_progress(interval_seconds=60):
        assert PROGRESS.snapshot() == Counts()
