from __future__ import annotations

import logging
from dataclasses import replace

from airflow_provider_llmbeam.jobs.monitor import ProgressLog
from airflow_provider_llmbeam.spec.protocol.counts import Counts


class Lines(list):
    def log(self, level, event, *args):
        assert level == logging.INFO
        self.append(event % args)


def test_a_line_is_written_on_each_change_and_none_while_nothing_moves():
    lines = Lines()
    progress = ProgressLog(lines)
    for now, answered in enumerate([0, 0, 5, 5, 10]):
        progress.show(Counts(rows=10, answered=answered), now * 10.0)
    assert [line.split(" · ")[0] for line in lines] == ["rows 0/10 (0%)", "rows 5/10 (50%)", "rows 10/10 (100%)"]


def test_nothing_is_written_before_the_first_row():
    lines = Lines()
    ProgressLog(lines).show(Counts(), 0)
    assert lines == []


def test_the_rate_is_that_of_the_latest_polls():
    lines = Lines()
    progress = ProgressLog(lines)
    for now in range(20):
        progress.show(Counts(rows=10_000, answered=now if now < 10 else 10 + (now - 10) * 100), float(now))
    assert "100.0 rows/s" in lines[-1]


def test_a_decreasing_count_gives_no_negative_rate():
    lines = Lines()
    progress = ProgressLog(lines)
    progress.show(Counts(rows=10, answered=8), 0)
    progress.show(Counts(rows=10, answered=4), 10)
    assert " 0.0 rows/s" in lines[-1]


def test_the_line_has_the_cost_if_the_price_is_known():
    lines = Lines()
    counts = Counts(rows=10, answered=1, input_tokens=1_000_000, output_tokens=2_000_000)
    ProgressLog(lines).show(counts, 0)
    ProgressLog(lines).show(replace(counts, cost_nano_usd=5_300_000_000), 0)
    assert ["$5.30" in line for line in lines] == [False, True]
