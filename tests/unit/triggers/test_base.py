from __future__ import annotations

import asyncio
from contextvars import ContextVar
from threading import Barrier

from airflow_provider_llmbeam.polling.poller import Wait
from airflow_provider_llmbeam.triggers import base as module
from airflow_provider_llmbeam.triggers.base import PollingTrigger


class Over:
    def to_event(self):
        return {"over": True}


class Countdown:
    def __init__(self, polls):
        self.left = polls

    def poll(self):
        self.left -= 1
        return Wait(7.0) if self.left else Over()


class CountdownTrigger(PollingTrigger[Countdown]):
    first_poll_delay_seconds = 0.0

    def serialize(self):
        return ("tests.CountdownTrigger", {})

    def make_poller(self, log):
        return Countdown(3)


def ran(trigger, monkeypatch):
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    async def events():
        return [event.payload async for event in trigger.run()]

    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    return asyncio.run(events()), slept


def test_a_trigger_polls_until_there_is_a_result_and_fires_once(monkeypatch):
    assert ran(CountdownTrigger(10.0), monkeypatch) == ([{"over": True}], [10.0, 7.0, 7.0])


def test_only_the_first_wait_has_jitter(monkeypatch):
    firsts = set()
    for _ in range(20):
        _, (first, *others) = ran(CountdownTrigger(10.0, jitter_seconds=2.0), monkeypatch)
        assert 10.0 <= first <= 12.0
        assert others == [7.0, 7.0]
        firsts.add(first)
    assert len(firsts) > 1


def test_a_trigger_that_has_not_started_has_a_new_poller(monkeypatch):
    trigger = CountdownTrigger(10.0)
    assert trigger.poller.left == 3
    ran(trigger, monkeypatch)
    assert trigger.poller.left == 0


def test_twenty_polls_wait_for_their_replies_concurrently():
    all_at_once, name = Barrier(20, timeout=10), ContextVar("name")
    names = []

    class Slow:
        def poll(self):
            all_at_once.wait()
            names.append(name.get())
            return Over()

    class SlowTrigger(CountdownTrigger):
        def make_poller(self, log):
            return Slow()

    async def run(number):
        name.set(number)
        return [event.payload async for event in SlowTrigger(0.0).run()]

    async def main():
        return await asyncio.gather(*map(run, range(20)))

    assert asyncio.run(main()) == [[{"over": True}]] * 20
    assert sorted(names) == [*range(20)], "each poll runs in the context of its task, to which its log lines go"
