from __future__ import annotations

import asyncio
import time

import pytest

from airflow_provider_llmbeam.polling.poller import Wait
from airflow_provider_llmbeam.polling.schedule import FIRST_POLL_DELAY_SECONDS, PollSchedule, ScheduledPoller
from airflow_provider_llmbeam.triggers import base as module
from airflow_provider_llmbeam.triggers.sensor import SensorTrigger


class Never:
    def check(self, log):
        return Wait(0.0, "not yet")


class NeverTrigger(SensorTrigger):
    @classmethod
    def poll_condition(cls, arguments, schedule, log):
        return ScheduledPoller(Never(), schedule, log=log)


@pytest.fixture
def slept(monkeypatch):
    slept = []

    async def sleep(seconds):
        slept.append(seconds)
        raise InterruptedError

    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    return slept


async def first_wait(slept, **schedule):
    parsed = PollSchedule(**{"started_at": time.time(), "polls": 1, **schedule})
    trigger = NeverTrigger(arguments={}, schedule=parsed.to_dict())
    with pytest.raises(InterruptedError):
        await anext(trigger.run())
    return slept.pop()


@pytest.mark.parametrize("seconds", [20.0, 60.0])
def test_the_first_wait_is_the_poll_interval_with_a_tenth_of_jitter(slept, seconds):
    found = asyncio.run(first_wait(slept, timeout_seconds=3600, poll_interval_seconds=seconds))
    assert seconds <= found <= 1.1 * seconds


def test_the_first_wait_ends_at_the_timeout(slept):
    assert asyncio.run(first_wait(slept, timeout_seconds=30, poll_interval_seconds=60)) <= 33


@pytest.mark.parametrize("schedule", [{"timeout_seconds": 4}, {"started_at": 0.0, "timeout_seconds": 50}])
def test_the_first_poll_is_not_sooner_than_airflow_supports(slept, schedule):
    assert asyncio.run(first_wait(slept, **{"timeout_seconds": 50, **schedule})) >= FIRST_POLL_DELAY_SECONDS
