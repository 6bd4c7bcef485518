"""What sensors that wait cost a triggerer, in CPU seconds of this process: load by others does not count."""

from __future__ import annotations

import asyncio
import time

import pytest

from airflow_provider_llmbeam.polling.schedule import PollSchedule
from airflow_provider_llmbeam.triggers.quota import QuotaTrigger
from bench.exhausted_cloud import MODEL, exhausted_cloud

#: Sensors that look once a minute, of which a share of one core is stated. Measured on two cores of a cloud's
#: virtual machine: 4.3 ms a look, which is 1.4%, and with probes, of which three are sent, 10 ms or 3.3%.
SENSORS = 200
POKE_INTERVAL_SECONDS = 60.0
QUESTION = {"model": {"type": "gemini", "name": MODEL, "project": "llmbeam-sandbox"}}


@pytest.fixture(scope="module")
def cloud():
    with exhausted_cloud() as running:
        yield running


def waiting(probe_requests: int) -> QuotaTrigger:
    """Looks as often as patience allows, so that the test is short."""
    schedule = PollSchedule(started_at=time.time(), timeout_seconds=3600, poll_interval_seconds=1, polls=1)
    trigger = QuotaTrigger(question={**QUESTION, "probe_requests": probe_requests}, schedule=schedule.to_dict())
    trigger._delay_seconds = 1.0
    return trigger


async def cpu_seconds_of_a_look(triggers: list[QuotaTrigger], rounds: int) -> float:
    """Of one after the first, which reads connections and keys."""

    async def run(trigger: QuotaTrigger) -> None:
        async for _ in trigger.run():
            raise AssertionError("a sensor found room where there is none")

    async def until(looks: int) -> tuple[float, int]:
        while min(each.poller.polls for each in triggers) < looks:
            done, _ = await asyncio.wait(tasks, timeout=0.1)
            for task in done:
                task.result()
        return time.process_time(), sum(each.poller.polls for each in triggers)

    tasks = [asyncio.create_task(run(each)) for each in triggers]
    begun, before = await until(3)
    ended, after = await until(3 + rounds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return (ended - begun) / (after - before)


@pytest.mark.parametrize(
    ("sensors", "probe_requests", "cpu_share"), [(SENSORS, 0, 0.03), (24, 8, 0.07)], ids=["metrics", "probes"]
)
def test_two_hundred_waiting_sensors_cost_a_few_percent_of_a_core(
    cloud, monkeypatch, sensors, probe_requests, cpu_share
):
    for name, value in cloud.environment.items():
        monkeypatch.setenv(name, value)
    before = cloud.requests()
    seconds = asyncio.run(cpu_seconds_of_a_look([waiting(probe_requests) for _ in range(sensors)], rounds=2))
    asked = cloud.requests()
    assert asked["monitoring.timeSeries.list"] - before.get("monitoring.timeSeries.list", 0) >= 3 * 4 * sensors
    assert (asked.get("gemini.generateContent", 0) > 0) == (probe_requests > 0)
    assert seconds * SENSORS / POKE_INTERVAL_SECONDS < cpu_share
