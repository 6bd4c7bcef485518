from __future__ import annotations

import json
from dataclasses import asdict
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.exceptions import AccessDeniedError, CloudNotFoundError, CloudUnavailableError
from airflow_provider_llmbeam.polling.schedule import ConsecutiveFailures

START = 1_000.0


def failures(*errors, interval=10.0):
    """Returns the failures after the given errors, one per interval."""
    counted = ConsecutiveFailures()
    for number, error in enumerate(errors):
        counted = counted.add(error("…"), START + number * interval)
    return counted


def test_failures_are_counted_from_the_first_one_on():
    counted = failures(*[CloudUnavailableError] * 4)
    assert (counted.count, counted.since) == (4, START)
    assert counted.seconds(START + 45.0) == 45.0
    assert ConsecutiveFailures().seconds(START) == 0.0


def test_each_kind_is_counted_while_it_repeats():
    denied, missing = AccessDeniedError, CloudNotFoundError
    kinds = [denied, denied, missing, denied]
    counted = list(accumulate(kinds, lambda sofar, kind: sofar.add(kind("…"), START), initial=failures()))
    assert [(one.kind, one.kind_count, one.count) for one in counted] == [
        ("", 0, 0),
        ("AccessDeniedError", 1, 1),
        ("AccessDeniedError", 2, 2),
        ("CloudNotFoundError", 1, 3),
        ("AccessDeniedError", 1, 4),
    ]


def test_quick_failures_and_a_slow_one_do_not_exceed_the_limits_alone():
    ten = failures(*[CloudUnavailableError] * 10)
    assert not ten.exceeds(10, 900.0, START + 899.0)
    assert ten.exceeds(10, 900.0, START + 900.0)
    assert not failures(*[CloudUnavailableError] * 9).exceeds(10, 900.0, START + 9_000.0)


def test_the_wait_doubles_from_the_interval_to_the_longest_wait():
    waits = [failures(*[CloudUnavailableError] * count).wait_seconds(30.0, 100.0) for count in range(1, 5)]
    assert waits == [30.0, 60.0, 100.0, 100.0]
    assert failures(CloudUnavailableError).wait_seconds(600.0, 100.0) == 600.0


@given(count=st.integers(1, 10**9), interval=st.floats(0, 1e6), most=st.floats(0, 1e6))
def test_the_wait_stays_between_the_interval_and_the_longest_wait(count, interval, most):
    seconds = ConsecutiveFailures(count=count).wait_seconds(interval, most)
    assert interval <= seconds <= max(interval, most)


def test_failures_round_trip_through_json():
    counted = failures(CloudUnavailableError, AccessDeniedError)
    assert ConsecutiveFailures(**json.loads(json.dumps(asdict(counted)))) == counted
