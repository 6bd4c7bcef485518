"""Cost of a poll of a waiting sensor in the triggerer, as counts; `bench.waiting_sensors` measures the seconds."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections import Counter
from functools import wraps

import pytest
from airflow.sdk.bases.hook import BaseHook
from urllib3.connection import HTTPSConnection

from airflow_provider_llmbeam.polling.schedule import PollSchedule, ScheduledPoller
from airflow_provider_llmbeam.triggers import base
from airflow_provider_llmbeam.triggers.sensor import QuotaTrigger
from bench.exhausted_cloud import MODEL, exhausted_cloud
from tests.clouds import use_environment
from tests.counting import function_calls

QUESTION = {"model": {"type": "gemini", "name": MODEL, "project": "llmbeam-sandbox"}}
#: Requests of one poll to Cloud Monitoring, and of one probe to the model: it stops after three rejections.
METRICS_REQUESTS, PROBE_REQUESTS = 4, 3
#: Hosts of one poll: Cloud Monitoring, the token service, the allowed locations of the account, and the model.
HOSTS = 4
POLLS_AT_ONCE = 8
#: Number of sensors whose polls are profiled, which makes the polls several times slower.
PROFILED = 4


@pytest.fixture(scope="module")
def cloud():
    with exhausted_cloud() as running:
        yield running


@pytest.fixture(autouse=True)
def few_threads(monkeypatch):
    """Limits the concurrent polls below the number of sensors, to detect costs that grow with the sensors."""
    monkeypatch.setattr(base, "_MAX_CONCURRENT_POLLS", POLLS_AT_ONCE)
    base._threads.cache_clear()
    yield
    base._threads().shutdown()
    base._threads.cache_clear()


@pytest.fixture
def counts(monkeypatch):
    """Counts connections, reads of certificate authorities and of Airflow connections, and hooks."""
    found = Counter()
    for owner, name in (
        (HTTPSConnection, "connect"),
        (ssl.SSLContext, "load_verify_locations"),
        (BaseHook, "__init__"),
    ):
        monkeypatch.setattr(owner, name, counted(found, name, getattr(owner, name)))
    read = counted(found, "get_connection", BaseHook.get_connection.__func__)
    monkeypatch.setattr(BaseHook, "get_connection", classmethod(read))
    return found


def counted(found, name, function):
    @wraps(function)
    def call(*args, **kwargs):
        found[name] += 1
        return function(*args, **kwargs)

    return call


class Rounds:
    """Replaces `asyncio.sleep`: all triggers poll when the test calls `poll`, without delays."""

    def __init__(self, triggers):
        self._triggers = triggers
        self._waiting = 0
        self._all_wait, self._next = asyncio.Event(), asyncio.Event()

    async def sleep(self, _):
        self._waiting += 1
        if self._waiting == len(self._triggers):
            self._all_wait.set()
        await self._next.wait()

    async def all_wait(self, tasks):
        """Waits until each trigger has polled and waits for its next poll."""
        waiting = asyncio.ensure_future(self._all_wait.wait())
        done, _ = await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def poll(self, tasks):
        """Lets each trigger poll once."""
        begun, self._next = self._next, asyncio.Event()
        self._all_wait, self._waiting = asyncio.Event(), 0
        begun.set()
        await self.all_wait(tasks)


def waiting(probe_requests: int) -> QuotaTrigger:
    schedule = PollSchedule(started_at=time.time(), timeout_seconds=3600, polls=1)
    question = {**QUESTION, "probe_requests": probe_requests}
    return QuotaTrigger(arguments={"question": question}, schedule=schedule.to_dict())


def profiled(monkeypatch, number):
    """Counts the function calls in the second poll of some triggers; returns the list of these counts."""
    found, unprofiled, polled = [], ScheduledPoller.poll, []

    def profiled_poll(poller):
        if poller not in polled:
            polled.append(poller)
            return unprofiled(poller)
        if polled.index(poller) >= number:
            return unprofiled(poller)
        seen, calls = function_calls(lambda: unprofiled(poller))
        found.append(calls)
        return seen

    monkeypatch.setattr(ScheduledPoller, "poll", profiled_poll)
    return found


@pytest.mark.parametrize(
    ("sensors", "probe_requests", "most_calls"),
    [
        (50, 0, 35_000),
        pytest.param(24, 8, 55_000, marks=pytest.mark.full),
    ],  # measured: 24,773 and 38,663 calls, on Python 3.11
    ids=["metrics", "probes"],
)
def test_a_poll_of_a_waiting_sensor_reuses_connections_hooks_and_threads(
    cloud, monkeypatch, counts, sensors, probe_requests, most_calls
):
    use_environment(monkeypatch, cloud.environment)
    triggers = [waiting(probe_requests) for _ in range(sensors)]
    calls = profiled(monkeypatch, PROFILED)
    threads = threading.active_count()

    async def run(trigger):
        async for _ in trigger.run():
            raise AssertionError("a sensor found capacity where there is none")

    async def polled():
        """Returns the counts of the first polls and of the later ones, and the requests of the later ones."""
        rounds = Rounds(triggers)
        monkeypatch.setattr(asyncio, "sleep", rounds.sleep)
        tasks = [asyncio.create_task(run(each)) for each in triggers]
        await rounds.all_wait(tasks)
        await rounds.poll(tasks)
        first, requests = counts.copy(), Counter(cloud.requests())
        await rounds.poll(tasks)
        later = counts - first, Counter(cloud.requests()) - requests
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return first, *later

    first, later, requests = asyncio.run(polled())
    print(f"first: {dict(first)}; later: {dict(later)}; calls of a poll: {calls}")
    assert requests["monitoring.timeSeries.list"] == METRICS_REQUESTS * sensors
    assert requests["gemini.generateContent"] == (PROBE_REQUESTS * sensors if probe_requests else 0)
    assert requests.total() == (METRICS_REQUESTS + (PROBE_REQUESTS if probe_requests else 0)) * sensors
    assert later["__init__"] == later["get_connection"] == 0, "hooks and Airflow connections are kept"
    opened = first["connect"] + later["connect"]
    assert opened <= HOSTS * POLLS_AT_ONCE < sensors + first["__init__"], "one per host and poll at a time"
    assert first["load_verify_locations"] + later["load_verify_locations"] == opened, "once per connection"
    assert threading.active_count() <= threads + POLLS_AT_ONCE
    assert len(calls) == PROFILED
    assert max(calls) <= most_calls
