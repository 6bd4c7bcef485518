"""The simulation of a job on many machines, and its figures in docs/evidence/scale.md."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from bench.fleet import streams
from bench.fleet.case import HUNDRED_MILLION, PAPER, FleetCase
from bench.fleet.governors import Sharing, share_quota
from bench.fleet.journal import write_all, write_batch
from bench.fleet.tables import bounds_table, paper_table, sharing_line, totals_table
from bench.fleet.totals import totals_of

EVIDENCE = Path(__file__).resolve().parents[3] / "docs" / "evidence"
PAGE = (EVIDENCE / "scale.md").read_text()


def totals(case):
    journal = write_all(case, write_batch(case))
    return totals_of(case, journal, case.quota_seconds), journal


def test_the_figures_of_the_page_are_those_of_the_simulation():
    hundred_million, journal = totals(HUNDRED_MILLION)
    assert bounds_table(hundred_million) in PAGE
    assert totals_table(hundred_million, journal) in PAGE
    assert paper_table(PAPER, *totals(PAPER)) in PAGE


@pytest.mark.parametrize("expected_workers", [50, 200])
def test_the_first_minute_on_the_page_is_that_of_the_simulation(expected_workers):
    sharing = share_quota(HUNDRED_MILLION, expected_workers, seconds=60)
    assert f"| {' | '.join(sharing_line(sharing)[:3])} |" in PAGE


def test_the_time_for_some_rows_follows_from_the_shares_and_then_from_the_steady_one():
    sharing = Sharing(expected_workers=1, admitted=(0.5, *[1.0] * 59), rejected=(0.0,) * 60, steady_jain=1.0)
    assert sharing.seconds_for(4) == 8
    assert sharing.seconds_for(10) == 15
    assert sharing.seconds_for(1000) == 1005


def test_every_answer_of_a_batch_is_in_an_object_at_its_end():
    case = FleetCase(rows=1000, workers=1, processes_per_worker=1, requests_per_minute=6000, max_in_flight=64)
    batch = write_batch(case)
    assert batch.written - batch.deleted == batch.segments
    assert batch.segments >= 1000 / (100 * 16), "one for each 15 s and upload"
    assert write_all(case, batch).objects == batch.segments


def test_the_figures_of_a_stream_on_its_page_are_those_of_the_simulation():
    case, page = streams.StreamCase(), (EVIDENCE / "stream-scale.md").read_text()
    one = streams.simulate(case, streams.MEASURED, 500, 50)
    assert streams.fleet_table(streams.fleet_of(case, streams.MEASURED, one), one) in page
    assert streams.latency_table([one]).splitlines()[-1].rstrip("| ") in page


def test_a_stream_takes_longer_with_longer_intervals_and_more_messages_and_falls_behind_at_last():
    case, measured = streams.StreamCase(), streams.MEASURED
    quick, slow, busy, full = (
        streams.simulate(case, measured, rate, interval, seconds=10)
        for rate, interval in ((100, 50), (100, 200), (500, 50), (600, 50))
    )
    assert case.model_seconds < quick.p50 < slow.p50
    assert quick.beyond_p95 < busy.beyond_p95 < full.beyond_p95 == math.inf
    assert slow.transactions < quick.transactions < 1 / 0.05
