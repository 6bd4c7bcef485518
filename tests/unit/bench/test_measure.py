from __future__ import annotations

from dataclasses import replace

import pytest
from llmbeam_sandbox.core.records import RequestRecord
from llmbeam_sandbox.models.quota import Quota

from bench.jobs import JOBS, ServerSettings, Target
from bench.measure import Measurement, answer_figures, per_second, request_figures
from bench.rows import Row
from bench.steps import SteppedLedger
from bench.summary import Spread, better_by, verdicts
from bench.table import spread_text, table

QUOTA_JOB = replace(
    next(job for job in JOBS if job.letter == "E"), server=ServerSettings(requests_per_minute=60), processes=(1,)
)


def record(at, status=200, prompt="a"):
    return RequestRecord(
        method="gemini.generateContent",
        prompt_sha256=prompt,
        http_status=status,
        received_at=1000.0 + at,
        answered_at=1000.5 + at,
        is_billed=status == 200,
    )


def rows(count):
    return [Row(id=number, text=f"row{number} text") for number in range(count)]


def measurement(contender="ours", repeat=0, **figures):
    return Measurement(job="E", contender=contender, processes=1, repeat=repeat, rows=3, figures=figures)


def test_requests_rejections_and_double_payments_are_counted():
    records = [record(0, prompt="a"), record(1, 429, "b"), record(2, prompt="b"), record(4, prompt="a")]
    figures = request_figures(QUOTA_JOB, rows(2), records)
    assert figures["requests"] == 4
    assert figures["rejected_ratio"] == 0.25
    assert figures["requests_per_row"] == 2
    assert figures["paid_twice"] == 1


def test_utilisation_is_the_ratio_of_admitted_to_available_requests():
    records = [record(second, 200 if second % 2 == 0 else 429, str(second)) for second in range(11)]
    assert request_figures(QUOTA_JOB, rows(6), records)["utilisation"] == pytest.approx(0.6)


def test_the_burst_does_not_lift_utilisation_over_one():
    assert request_figures(QUOTA_JOB, rows(3), [record(0), record(0.1), record(1)])["utilisation"] == 1


def test_a_missing_an_empty_and_a_swapped_answer_are_lost_rows():
    answers = {"0": "row0 text [m]", "1": "row0 text [m]", "2": ""}
    assert answer_figures(rows(4), answers, is_text_checked=True) == {"lost": 3}
    assert answer_figures(rows(4), answers, is_text_checked=False) == {"lost": 2}


def test_arrivals_are_counted_per_second():
    records = [record(0), record(0.2, 429), record(2.5)]
    assert per_second(records, rejected=False) == [1, 0, 1]
    assert per_second(records, rejected=True) == [1]


def test_a_stepped_quota_admits_by_its_schedule():
    ledger = SteppedLedger(Quota(requests_per_minute=600), shares=(1.0, 0.5), step_seconds=10)
    admitted = [number / 100 for number in range(3000) if ledger.admit(number / 100, 1) is None]
    first, second = sum(at < 10 for at in admitted), sum(at >= 20 for at in admitted)
    assert first == pytest.approx(10 * 10 + 20, abs=2)  # the initial content of the bucket is added
    assert second == pytest.approx(10 * 5, abs=2)


def test_the_advantage_of_ours_is_the_ratio_within_each_repeat():
    ours = [measurement(utilisation=0.9), measurement(repeat=1, utilisation=1.0)]
    other = [measurement("x", utilisation=0.3), measurement("x", repeat=1, utilisation=0.5)]
    assert better_by(QUOTA_JOB, ours, other) == Spread(low=2, middle=2.5, high=3)


def test_a_contender_that_lost_rows_is_not_compared():
    assert (
        better_by(QUOTA_JOB, [measurement(utilisation=1.0)], [measurement("x", utilisation=2.0, lost=1)]) is None
    )


def test_the_worst_repeat_decides_on_a_target():
    job = replace(QUOTA_JOB, targets=(Target(figure="utilisation", at_least=0.97),))
    found = [measurement(utilisation=0.99), measurement(repeat=1, utilisation=0.96)]
    assert [verdict.is_reached for verdict in verdicts([job], found)] == [False]
    assert [verdict.is_reached for verdict in verdicts([job], found[:1])] == [True]


def test_a_failed_run_reaches_no_target():
    failed = replace(measurement(utilisation=1.0, rejected_ratio=0, lost=0), failure="exit status 1")
    assert not any(verdict.is_reached for verdict in verdicts([QUOTA_JOB], [failed]))


def test_the_table_lists_contenders_that_did_not_run_with_the_reason():
    from bench.registry import CONTENDERS

    text = table([QUOTA_JOB], CONTENDERS, [measurement(utilisation=1.0)], [], {"litellm": "not installed"})
    assert "litellm                        not run: not installed" in text
    assert "datatrove                      not run: does not support quotas" in text


def test_a_spread_of_equal_numbers_is_one_number():
    assert spread_text(Spread(low=1, middle=1, high=1)) == "1"
    assert spread_text(Spread(low=0.9, middle=0.95, high=1234)) == "0.95 (0.9–1,234)"
    assert spread_text(None) == "–"
