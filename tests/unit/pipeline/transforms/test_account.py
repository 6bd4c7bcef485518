from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.outcome import Completion, Failure
from airflow_provider_llmbeam.engine.token_counts import Tokens
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow, FailedRow
from airflow_provider_llmbeam.pipeline.reporting.tally import Tally, add_up
from airflow_provider_llmbeam.pipeline.reporting.time_series import percentile_seconds
from airflow_provider_llmbeam.pipeline.transforms.account import TallyRows
from airflow_provider_llmbeam.spec.fields.failure_kind import FAILURE_KINDS
from tests.hostile import examples
from tests.outcomes import completion

BOUNDARIES = (128, 512)
counts = st.integers(0, 1000)
times = st.integers(1, 10**6).map(float)
completions = st.builds(
    Completion,
    text=st.just("a"),
    model=st.just("m"),
    finish_reason=st.sampled_from(["stop", "max_tokens"]),
    tokens=st.builds(Tokens, counts, counts, counts),
    cost_nano_usd=st.none() | counts,
    attempts=st.integers(1, 5),
    rejections=st.integers(0, 5),
    latency_seconds=st.floats(0, 1000),
    sent_at=times,
    answered_at=times,
)
failures = st.builds(
    Failure,
    kind=st.sampled_from(FAILURE_KINDS),
    message=st.sampled_from(["one", "two"]),
    attempts=st.integers(0, 5),
    rejections=st.integers(0, 5),
    tokens=st.builds(Tokens, counts, counts),
)
origins = st.sampled_from(["fresh", "resumed", "duplicate"])
answered_rows = st.builds(
    AnsweredRow,
    row=st.just({}),
    fingerprint=st.just("f"),
    completion=completions,
    origin=origins,
)
elements = st.lists(answered_rows | st.builds(FailedRow, st.just({}), failures, origins), max_size=12)


def tally_of(rows: list[Any]) -> Tally:
    step = TallyRows(BOUNDARIES)
    step.start_bundle()
    for row in rows:
        step.process(row)
    (handed_on,) = step.finish_bundle()
    return handed_on.value


def merged(*tallies: Tally) -> Tally:
    return add_up(tallies)


def sums(tally: Tally) -> tuple[Any, ...]:
    """Returns all values but the messages, which may be those of any failure."""
    return (
        tally.answered,
        tally.failed,
        tally.messages.keys(),
        tally.sums,
        tally.latencies,
        tally.buckets,
        tally.first_sent_at,
        tally.last_answered_at,
    )


@given(elements, elements, elements)
@examples(0.5)
def test_the_tally_is_independent_of_where_and_in_which_order_rows_are_counted(
    a: list[Any], b: list[Any], c: list[Any]
) -> None:
    whole = sums(tally_of([*a, *b, *c]))
    assert sums(merged(tally_of(a), tally_of(b), tally_of(c))) == whole
    assert sums(merged(tally_of(c), tally_of(a), tally_of(b))) == whole
    assert sums(merged(merged(tally_of(a), tally_of(b)), tally_of(c))) == whole
    assert sums(merged(tally_of(a), merged(tally_of(b), tally_of(c)))) == whole
    assert sums(merged(Tally(), tally_of([*c, *b, *a]))) == whole


@given(elements, elements)
@examples(0.5)
def test_each_kind_of_failure_has_its_own_message(a: list[Any], b: list[Any]) -> None:
    tally = merged(tally_of(a), tally_of(b))
    assert tally.messages.keys() == tally.failed.keys()
    all_messages = {(row.failure.kind, row.failure.message) for row in [*a, *b] if isinstance(row, FailedRow)}
    assert tally.messages.items() <= all_messages


@given(elements)
@examples(0.5)
def test_every_row_counts_once(rows: list[Any]) -> None:
    tally = tally_of(rows)
    assert tally.answered.total() + tally.failed.total() == len(rows)
    assert tally.latencies.total() == tally.answered["fresh"]


def test_merging_does_not_change_the_parts() -> None:
    part = tally_of([AnsweredRow({}, "f", completion(), "fresh")])
    before = sums(part)
    merged(part, part)
    assert sums(part) == before


def test_a_fresh_answer_counts_with_all_its_cost() -> None:
    answer = completion(
        attempts=3,
        rejections=2,
        tokens=Tokens(200, 7, cached=150),
        cost_nano_usd=250_000_000,
        finish_reason="max_tokens",
    )
    tally = tally_of([AnsweredRow({}, "f", answer, "fresh")])
    assert tally.sums == Counter(
        requests=5,
        rejections=2,
        retries=2,
        input_tokens=200,
        output_tokens=7,
        cached_tokens=150,
        cost_nano_usd=250_000_000,
        truncated=1,
    )
    assert tally.buckets == {(1, "rows"): 1, (1, "input_tokens"): 200, (1, "output_tokens"): 7}
    assert (tally.first_sent_at, tally.last_answered_at) == (100.0, 101.0)


@pytest.mark.parametrize("origin", ["resumed", "duplicate"])
def test_an_answer_without_cost_in_this_run_counts_only_as_a_row(origin: Any) -> None:
    tally = tally_of([AnsweredRow({}, "f", completion(attempts=3), origin)])
    assert sums(tally) == sums(Tally(answered=Counter({origin: 1})))


def test_a_failure_that_was_billed_counts_with_its_cost_once() -> None:
    failure = Failure(kind="blocked", message="no", attempts=1, rejections=1, tokens=Tokens(9, 8), cost_nano_usd=1)
    tally = tally_of([FailedRow({}, failure), FailedRow({}, failure, "duplicate")])
    assert tally.failed == Counter(blocked=2)
    billed = {"requests": 2, "rejections": 1, "input_tokens": 9, "output_tokens": 8, "cost_nano_usd": 1}
    assert tally.sums == Counter(**billed, known_failures=1)
    assert tally.first_sent_at == math.inf


def test_a_row_that_was_never_sent_was_not_retried() -> None:
    tally = tally_of([FailedRow({}, Failure(kind="template_error", message="no"))])
    assert tally.sums["retries"] == tally.sums["requests"] == 0


@given(st.lists(st.floats(0.01, 1000), min_size=1, max_size=60), st.sampled_from(["0.5", "0.95", "0.99"]))
def test_a_percentile_is_at_most_a_tenth_too_high(latencies: list[float], share: str) -> None:
    step = TallyRows(BOUNDARIES)
    for latency in latencies:
        answer = Completion(
            text="a",
            model="m",
            finish_reason="stop",
            tokens=Tokens(1, 1),
            attempts=1,
            latency_seconds=latency,
            sent_at=1.0,
            answered_at=2.0,
        )
        step.process(AnsweredRow({}, "f", answer, "fresh"))
    exact = sorted(latencies)[math.ceil(Fraction(share) * len(latencies)) - 1]
    found = percentile_seconds(step.tally.latencies, float(share))
    assert found is not None
    assert exact - 1e-4 <= found <= exact * 1.1 + 1e-4


def test_without_answers_there_is_no_latency() -> None:
    assert percentile_seconds(Tally().latencies, 0.5) is None


def test_an_answer_in_no_time_has_a_latency() -> None:
    tally = tally_of([AnsweredRow({}, "f", completion(latency_seconds=0.0), "fresh")])
    assert percentile_seconds(tally.latencies, 0.5) == 0.0


def test_repairs_count_with_the_answers_of_this_run_only() -> None:
    repaired = AnsweredRow({}, "f", completion(repairs=2), "repaired")
    assert tally_of([repaired, AnsweredRow({}, "f", completion(repairs=2), "resumed")]).profile.repairs == 2


def test_an_answer_of_batch_inference_counts_when_its_result_was_read() -> None:
    tally = tally_of([AnsweredRow({}, "f", completion(latency_seconds=0.0), "batch")])
    (interval,) = tally.series.intervals.values()
    assert (interval.answers, interval.batch_answers, interval.sent, interval.latencies) == (0, 1, 0, {})
    assert not tally.sums, "its cost is in the sums of the batch inference"


def test_the_cost_of_each_tier_is_known() -> None:
    rows = [
        AnsweredRow({}, "f", completion(cost_nano_usd=3, service_tier="flex"), "fresh"),
        AnsweredRow({}, "f", completion(cost_nano_usd=5), "fresh"),
        AnsweredRow({}, "f", completion(cost_nano_usd=7), "duplicate"),
        FailedRow({}, Failure(kind="blocked", message="no", cost_nano_usd=2)),
    ]
    assert tally_of(rows).costs == {"flex": 3, "standard": 7}
