from __future__ import annotations

import json
import logging

from airflow_provider_llmbeam.exceptions import AccessDeniedError, CloudUnavailableError
from airflow_provider_llmbeam.polling.poller import Wait
from airflow_provider_llmbeam.polling.schedule import PollSchedule, ScheduledPoller, SensorResult

log = logging.getLogger(__name__)
START = 1_000.0


OPEN = {"open": True}


class Scripted:
    """Returns the given results in order and repeats the last one; raises those that are errors."""

    def __init__(self, *results):
        self.results = list(results)

    def check(self, log):
        result = self.results.pop(0) if len(self.results) > 1 else self.results[0]
        if isinstance(result, Exception):
            raise result
        return result


class Clock:
    def __init__(self):
        self.at = START

    def __call__(self):
        return self.at

    def sleep(self, seconds):
        self.at += seconds


def waited(condition, **given):
    """Returns the result and the list of waits before it."""
    clock, waits = Clock(), []
    schedule = {"started_at": START, "timeout_seconds": 100.0, "poll_interval_seconds": 30.0, **given}
    scheduled = ScheduledPoller(condition, PollSchedule(**schedule), log=log, now=clock)
    while isinstance(result := scheduled.poll(), Wait):
        waits.append(result.seconds)
        clock.sleep(result.seconds)
    return result, waits


def test_a_condition_that_is_met_ends_the_wait_with_its_value():
    result, waits = waited(Scripted(Wait(0.0, "shut"), OPEN))
    assert waits == [30.0]
    assert (result.outcome, result.polls, result.waited_seconds, result.value) == ("met", 2, 30.0, {"open": True})
    assert result.error is None


def test_the_last_poll_is_at_the_timeout(caplog):
    caplog.set_level(logging.INFO)
    result, waits = waited(Scripted(Wait(0.0, "The door is shut.")))
    assert waits == [30.0, 30.0, 30.0, 10.0]
    assert (result.outcome, result.polls, result.waited_seconds) == ("timed_out", 5, 100.0)
    assert result.message == "Polled 5 times within 100 s (`timeout`). The door is shut."
    assert caplog.text.count("The door is shut.") == 5


def test_a_timeout_of_zero_allows_one_poll():
    result, waits = waited(Scripted(Wait(0.0)), timeout_seconds=0.0)
    assert (result.outcome, result.message, waits) == ("timed_out", "Polled once within 0 s (`timeout`).", [])


def test_a_condition_can_request_a_longer_wait_but_not_beyond_the_timeout():
    _, waits = waited(Scripted(Wait(47.0), Wait(900.0)))
    assert waits == [47.0, 53.0]


def test_polls_before_the_schedule_was_passed_on_count():
    result, waits = waited(Scripted(Wait(0.0), OPEN), polls=2, is_exponential=True, timeout_seconds=None)
    assert (waits, result.polls) == ([120.0], 4)


def test_a_retryable_error_does_not_end_the_wait():
    result, waits = waited(Scripted(CloudUnavailableError("No answer."), OPEN))
    assert (result.outcome, waits) == ("met", [30.0])
    result, _ = waited(Scripted(CloudUnavailableError("No answer.")))
    assert result.message.endswith("No answer.")


def test_an_error_that_is_not_retryable_ends_the_wait():
    result, waits = waited(Scripted(AccessDeniedError("Not yours.")))
    assert (result.outcome, waits, result.polls) == ("refused", [], 1)
    again = SensorResult.from_event(json.loads(json.dumps(result.to_event())))
    assert again == result
    assert isinstance(again.error, AccessDeniedError)
    assert str(again.error) == "Not yours."
