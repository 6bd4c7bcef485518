from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.exceptions import AccessDeniedError, CloudUnavailableError, JobSpecError
from airflow_provider_llmbeam.polling.poller import Wait
from airflow_provider_llmbeam.polling.schedule import (
    MIN_SECONDS,
    PollSchedule,
    ScheduledPoller,
    SensorResult,
    wait_seconds,
)

log = logging.getLogger(__name__)
START = 1_000.0


class Open:
    def to_event(self):
        return {"open": True}


class Door:
    """Says one thing after the other, the last again and again; an error among them is raised."""

    def __init__(self, *said):
        self.said = list(said)

    def look(self):
        said = self.said.pop(0) if len(self.said) > 1 else self.said[0]
        if isinstance(said, Exception):
            raise said
        return said


class Clock:
    def __init__(self):
        self.at = START

    def __call__(self):
        return self.at

    def sleep(self, seconds):
        self.at += seconds


def patience(**given):
    return PollSchedule(**{"started_at": START, "timeout_seconds": 100.0, "poke_interval_seconds": 30.0, **given})


def waited(door, **given):
    """What became of it, and each wait in between."""
    clock, waits = Clock(), []
    watch = ScheduledPoller(door, patience(**given), log=log, now=clock)
    while isinstance(seen := watch.look(), Wait):
        waits.append(seen.seconds)
        clock.sleep(seen.seconds)
    return seen, waits


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({}, [30.0, 30.0, 30.0, 30.0]),
        ({"is_exponential": True}, [30.0, 60.0, 120.0, 240.0]),
        ({"is_exponential": True, "max_wait_seconds": 100.0}, [30.0, 60.0, 100.0, 100.0]),
        ({"max_wait_seconds": 10.0}, [10.0] * 4),
    ],
)
def test_the_wait_grows_as_it_was_asked_to(given, seconds):
    assert [wait_seconds(look, 30.0, **given) for look in range(1, 5)] == seconds


@given(
    look=st.integers(0, 10**9),
    interval=st.floats(0, 1e6),
    is_exponential=st.booleans(),
    most=st.none() | st.floats(0, 1e6),
)
def test_a_wait_is_never_nothing_and_never_endless(look, interval, is_exponential, most):
    seconds = wait_seconds(look, interval, is_exponential=is_exponential, max_wait_seconds=most)
    assert MIN_SECONDS <= seconds < float("inf")
    assert most is None or seconds <= max(MIN_SECONDS, most)


def test_what_is_so_ends_it_with_its_event():
    end, waits = waited(Door(Wait(0.0, "shut"), Open()))
    assert waits == [30.0]
    assert (end.outcome, end.looks, end.waited_seconds, end.event) == ("met", 2, 30.0, {"open": True})
    assert end.error is None


def test_there_is_a_last_look_when_the_time_is_over(caplog):
    caplog.set_level(logging.INFO)
    end, waits = waited(Door(Wait(0.0, "The door is shut.")))
    assert waits == [30.0, 30.0, 30.0, 10.0]
    assert (end.outcome, end.looks, end.waited_seconds) == ("timed_out", 5, 100.0)
    assert end.message == "Looked 5 times within 100 s (`timeout`). The door is shut."
    assert caplog.text.count("The door is shut.") == 5


def test_without_a_time_there_is_one_look():
    end, waits = waited(Door(Wait(0.0)), timeout_seconds=0.0)
    assert (end.outcome, end.message, waits) == ("timed_out", "Looked once within 0 s (`timeout`).", [])


def test_what_looks_may_ask_for_a_longer_wait_but_not_beyond_the_time():
    _, waits = waited(Door(Wait(47.0), Wait(900.0)))
    assert waits == [47.0, 53.0]


def test_looks_of_others_count():
    end, waits = waited(Door(Wait(0.0), Open()), looks=2, is_exponential=True, timeout_seconds=None)
    assert (waits, end.looks) == ([120.0], 4)


def test_an_error_that_may_pass_is_waited_for():
    end, waits = waited(Door(CloudUnavailableError("No answer."), Open()))
    assert (end.outcome, waits) == ("met", [30.0])
    end, _ = waited(Door(CloudUnavailableError("No answer.")))
    assert end.message.endswith("No answer.")


def test_an_error_that_does_not_pass_is_the_end():
    end, waits = waited(Door(AccessDeniedError("Not yours.")))
    assert (end.outcome, waits, end.looks) == ("refused", [], 1)
    again = SensorResult.from_event(json.loads(json.dumps(end.to_event())))
    assert again == end
    assert isinstance(again.error, AccessDeniedError)
    assert str(again.error) == "Not yours."


@pytest.mark.parametrize("name", ["LaterError", "annotations", "ClassVar"])
def test_an_error_of_another_version_is_an_error_still(name):
    end = SensorResult(outcome="refused", message="No.", looks=1, waited_seconds=0.0, error_type=name)
    assert isinstance(end.error, JobSpecError)


def test_patience_travels_as_json():
    asked = patience(max_wait_seconds=5.0, looks=3)
    assert PollSchedule.from_dict(json.loads(json.dumps(asked.to_dict()))) == asked
