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
    def __init__(self, looks):
        self.left = looks

    def look(self):
        self.left -= 1
        return Wait(7.0) if self.left else Over()


class CountdownTrigger(PollingTrigger[Countdown]):
    def serialize(self):
        return ("tests.CountdownTrigger", {})

    def watch(self, log):
        return Countdown(3)


def ran(trigger, monkeypatch):
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    async def events():
        return [event.payload async for event in trigger.run()]

    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    return asyncio.run(events()), slept


def test_a_trigger_looks_until_it_is_over_and_fires_once(monkeypatch):
    assert ran(CountdownTrigger(10.0), monkeypatch) == ([{"over": True}], [10.0, 7.0, 7.0])


def test_the_first_wait_may_be_spread_and_the_others_are_not(monkeypatch):
    firsts = set()
    for _ in range(20):
        _, (first, *others) = ran(CountdownTrigger(10.0, jitter_seconds=2.0), monkeypatch)
        assert 10.0 <= first <= 12.0
        assert others == [7.0, 7.0]
        firsts.add(first)
    assert len(firsts) > 1


def test_what_looks_is_made_also_where_the_trigger_did_not_run_yet(monkeypatch):
    trigger = CountdownTrigger(10.0)
    assert trigger.watched.left == 3
    ran(trigger, monkeypatch)
    assert trigger.watched.left == 0


def test_twenty_looks_that_wait_for_a_reply_do_not_wait_for_each_other():
    all_at_once, name = Barrier(20, timeout=10), ContextVar("name")
    told = []

    class Slow:
        def look(self):
            all_at_once.wait()
            told.append(name.get())
            return Over()

    class SlowTrigger(CountdownTrigger):
        def watch(self, log):
            return Slow()

    async def run(number):
        name.set(number)
        return [event.payload async for event in SlowTrigger(0.0).run()]

    async def main():
        return await asyncio.gather(*map(run, range(20)))

    assert asyncio.run(main()) == [[{"over": True}]] * 20
    assert sorted(told) == [*range(20)], "each look in the context of its task, where its lines go"
