from __future__ import annotations

import asyncio

from airflow_provider_llmbeam.triggers import job as module
from airflow_provider_llmbeam.triggers.job import WaitTrigger


def ran(trigger, monkeypatch):
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    async def events():
        return [event.payload async for event in trigger.run()]

    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    monkeypatch.setattr(module.time, "time", lambda: 1000.0)
    return asyncio.run(events()), slept


def test_a_trigger_waits_until_its_time_and_fires_once(monkeypatch):
    assert ran(WaitTrigger(until=1060.0), monkeypatch) == ([{}], [60.0])


def test_a_trigger_whose_time_has_passed_fires_at_once(monkeypatch):
    assert ran(WaitTrigger(until=900.0), monkeypatch) == ([{}], [0.0])


def test_another_triggerer_waits_until_the_same_time():
    path, arguments = WaitTrigger(until=7.0).serialize()
    assert path == "airflow_provider_llmbeam.triggers.job.WaitTrigger"
    assert WaitTrigger(**arguments).until == 7.0
