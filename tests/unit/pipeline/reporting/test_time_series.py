from __future__ import annotations

import copy
import functools
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.outcome import Completion, Failure
from airflow_provider_llmbeam.engine.token_counts import Tokens
from airflow_provider_llmbeam.pipeline.reporting.time_series import (
    MAX_INTERVALS,
    TimeSeries,
    latency_class,
    latency_counts,
    series_of,
)
from tests.hostile import examples
from tests.outcomes import completion

times = st.floats(1.7e9, 1.7e9 + 10**6) | st.floats(1.7e9, 1.7e9 + 100)
counts = st.integers(0, 1000)
answers = st.builds(
    lambda at, **fields: completion(answered_at=at, sent_at=at - 1, **fields),
    at=times,
    latency_seconds=st.floats(0, 900),
    held_seconds=st.just(0.0) | st.floats(0, 400),
    rejected_at=st.lists(times, max_size=2).map(tuple),
    rejections=st.integers(2, 4),
    tokens=st.builds(Tokens, counts),
    cost_nano_usd=st.none() | counts,
)
failures = st.builds(
    Failure,
    kind=st.just("timeout"),
    message=st.just("slow"),
    failed_at=times,
    rejected_at=st.lists(times, max_size=2).map(tuple),
    rejections=st.integers(2, 4),
    tokens=st.builds(Tokens, output=counts),
)
events = st.lists(answers | failures, max_size=12)


def series(outcomes: list[Any]) -> TimeSeries:
    found = TimeSeries()
    for outcome in outcomes:
        if isinstance(outcome, Completion):
            found.add_answer(outcome, latency_class=3)
        else:
            found.add_failure(outcome)
    return found


def merged(*parts: TimeSeries) -> TimeSeries:
    total = TimeSeries()
    for part in parts:
        total.merge(part)
    return total


def sums(found: TimeSeries) -> dict[str, int]:
    names = ("answers", "failed", "rejections", "input_tokens", "output_tokens", "cost_nano_usd", "sent")
    return {name: sum(getattr(each, name) for each in found.intervals.values()) for name in names}


@given(events, events, events)
@examples(1)
def test_the_series_is_independent_of_where_and_in_which_order_events_are_added(
    a: list[Any], b: list[Any], c: list[Any]
) -> None:
    whole = series([*a, *b, *c])
    assert series([*c, *reversed(a), *b]) == whole
    assert merged(series(a), series(b), series(c)) == whole
    assert merged(series(c), merged(series(b), series(a))) == whole
    assert merged(merged(series(a), series(c)), series(b)) == whole


@given(events, events)
@examples(0.5)
def test_no_event_is_lost_and_no_series_is_longer_than_300_intervals(a: list[Any], b: list[Any]) -> None:
    total = merged(series(a), series(b))
    assert len(total.numbers) <= MAX_INTERVALS
    outcomes = [*a, *b]
    found = sums(total)
    assert found["answers"] == sum(isinstance(each, Completion) for each in outcomes)
    assert found["failed"] == sum(isinstance(each, Failure) for each in outcomes)
    assert found["rejections"] == sum(each.rejections for each in outcomes)
    assert found["input_tokens"] == sum(each.tokens.input for each in outcomes)
    assert found["cost_nano_usd"] == sum(each.cost_nano_usd or 0 for each in outcomes)
    assert found["sent"] == found["answers"]


@given(events)
@examples(0.5)
def test_merging_does_not_change_what_is_added(outcomes: list[Any]) -> None:
    part = series(outcomes)
    before = copy.deepcopy(part)
    merged(part, part)
    assert part == before


def test_the_intervals_of_a_short_run_are_seconds_and_those_of_a_night_are_minutes() -> None:
    assert (
        series_of(series([completion(answered_at=1000.5), completion(answered_at=1290.5)])).interval_seconds == 1
    )
    night = series_of(series([completion(answered_at=1000.5), completion(answered_at=1000.5 + 9 * 3600)]))
    assert night.interval_seconds == 128
    assert 150 <= len(night.answers) <= 300


@pytest.mark.parametrize("stretch", [1, 40])
def test_the_number_in_flight_is_the_mean_over_each_interval_however_long_it_is(stretch: int) -> None:
    """Two requests of 3 s, the second sent when half of the first is over."""
    outcomes = [
        completion(answered_at=1003.0, latency_seconds=3.0),
        completion(answered_at=1004.5, latency_seconds=3.0),
    ]
    if stretch > 1:
        outcomes.append(completion(answered_at=1000.0 + 300 * stretch, latency_seconds=0.0))
    found = series_of(series(outcomes))
    assert sum(found.in_flight) * found.interval_seconds == pytest.approx(
        6.0, abs=0.01 * len(found.in_flight) * stretch
    )
    if stretch == 1:
        assert found.started_at == 1000.0
        assert found.in_flight == [1.0, 1.5, 2.0, 1.0, 0.5]


def test_a_request_that_a_rate_limit_holds_counts_from_the_begin_of_the_wait_until_it_is_sent() -> None:
    found = series_of(series([completion(answered_at=1005.0, latency_seconds=1.0, held_seconds=2.5)]))
    assert found.started_at == 1001.0
    assert found.held == [0.5, 1.0, 1.0, 0.0, 0.0]
    assert found.in_flight == [0.0, 0.0, 0.0, 1.0, 0.0]


def test_429s_count_when_they_were_received_or_where_the_journal_has_lost_that_when_the_request_was_sent() -> None:
    answer = completion(
        sent_at=1000.0, answered_at=1004.5, latency_seconds=0.1, rejections=3, rejected_at=(1001.2, 1002.9)
    )
    assert series_of(series([answer])).rejections == [1, 1, 1, 0, 0]


def test_a_row_that_was_not_sent_has_no_time() -> None:
    assert series([Failure(kind="template_error", message="no")]) == TimeSeries()
    assert series_of(TimeSeries()) is None


def test_a_refusal_from_the_journal_counts_when_it_was_received() -> None:
    refusal = Failure(kind="blocked", message="no", answered_at=1000.0)
    assert series_of(series([refusal])).failed == [1]


def test_a_million_answers_make_no_larger_series_than_a_thousand() -> None:
    parts = [series([completion(answered_at=1000.0 + day * 86_400 + n) for n in range(50)]) for day in range(40)]
    total = functools.reduce(lambda a, b: merged(a, b), parts)
    assert len(total.numbers) <= MAX_INTERVALS
    assert sums(total)["answers"] == 2000


def test_no_two_classes_of_latencies_have_the_same_bound():
    classes = Counter(dict.fromkeys(range(latency_class(1e-06), latency_class(100000) + 1), 1))
    assert len(latency_counts(classes)) == len(classes)


@pytest.mark.parametrize("seconds", [0.00096, 0.00104, 0.5, 93.0, 3600.0])
def test_a_bound_is_at_most_ten_percent_above_the_latency(seconds):
    (bound,) = latency_counts(Counter({latency_class(seconds): 3}))
    assert seconds * 0.999 <= float(bound) <= seconds * 1.1001
