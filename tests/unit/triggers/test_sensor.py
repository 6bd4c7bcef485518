from __future__ import annotations

import asyncio
import time

import pytest

from airflow_provider_llmbeam.dataflow.state_machine import FIRST_LOOK_SECONDS
from airflow_provider_llmbeam.polling.poller import Wait
from airflow_provider_llmbeam.polling.schedule import PollSchedule
from airflow_provider_llmbeam.triggers import base as look
from airflow_provider_llmbeam.triggers.sensor import SensorTrigger


class Never:
    def look(self):
        return Wait(0.0, "not yet")


class NeverTrigger(SensorTrigger):
    def serialize(self):
        return ("tests.NeverTrigger", {"patience": self.patience})

    def looker(self, log):
        return Never()


@pytest.fixture
def slept(monkeypatch):
    slept = []

    async def sleep(seconds):
        slept.append(seconds)
        raise InterruptedError

    monkeypatch.setattr(look.asyncio, "sleep", sleep)
    return slept


async def first_wait(slept, **patience):
    trigger = NeverTrigger(patience=PollSchedule(**{"started_at": time.time(), "looks": 1, **patience}).to_dict())
    with pytest.raises(InterruptedError):
        await anext(trigger.run())
    return slept.pop()


@pytest.mark.parametrize("seconds", [20.0, 60.0])
def test_the_first_wait_is_the_poke_interval_with_a_tenth_of_chance(slept, seconds):
    found = asyncio.run(first_wait(slept, timeout_seconds=3600, poke_interval_seconds=seconds))
    assert seconds <= found <= 1.1 * seconds


def test_the_first_wait_ends_with_patience(slept):
    assert asyncio.run(first_wait(slept, timeout_seconds=30, poke_interval_seconds=60)) <= 33


@pytest.mark.parametrize("patience", [{"timeout_seconds": 4}, {"started_at": 0.0, "timeout_seconds": 50}])
def test_the_first_look_is_no_sooner_than_airflow_stands(slept, patience):
    assert asyncio.run(first_wait(slept, **{"timeout_seconds": 50, **patience})) >= FIRST_LOOK_SECONDS
