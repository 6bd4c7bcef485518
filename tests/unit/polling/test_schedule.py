from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.polling.schedule import MIN_POLL_INTERVAL_SECONDS, PollSchedule

START = 1_000.0


def schedule(**given):
    return PollSchedule(**{"started_at": START, "timeout_seconds": 100.0, "poll_interval_seconds": 30.0, **given})


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({}, [30.0, 30.0, 30.0, 30.0]),
        ({"is_exponential": True}, [30.0, 60.0, 120.0, 240.0]),
        ({"is_exponential": True, "max_wait_seconds": 100.0}, [30.0, 60.0, 100.0, 100.0]),
        ({"max_wait_seconds": 10.0}, [10.0] * 4),
    ],
)
def test_the_interval_is_constant_or_doubles_up_to_its_limit(given, seconds):
    assert [schedule(**given).interval_seconds(poll) for poll in range(1, 5)] == seconds


@given(
    poll=st.integers(0, 10**9),
    interval=st.floats(0, 1e6),
    is_exponential=st.booleans(),
    most=st.none() | st.floats(0, 1e6),
)
def test_the_interval_is_never_zero_and_never_infinite(poll, interval, is_exponential, most):
    seconds = schedule(
        poll_interval_seconds=interval, is_exponential=is_exponential, max_wait_seconds=most
    ).interval_seconds(poll)
    assert MIN_POLL_INTERVAL_SECONDS <= seconds < float("inf")
    assert most is None or seconds <= max(MIN_POLL_INTERVAL_SECONDS, most)


def test_a_schedule_round_trips_through_json():
    original = schedule(max_wait_seconds=5.0, polls=3)
    assert PollSchedule.from_dict(json.loads(json.dumps(original.to_dict()))) == original
