from __future__ import annotations

import asyncio
from contextvars import ContextVar
from threading import Barrier, Event
from types import SimpleNamespace

import pytest
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from asgiref.sync import async_to_sync

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
    all_at_once, name = Barrier(20, timeout=60), ContextVar("name")
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


def test_a_poll_reads_connections_in_the_event_loop_of_the_triggerer():
    loops = []

    async def read():
        """Reads like Airflow 3.1, which sends requests to the supervisor through streams of one event loop."""
        loops.append(asyncio.get_running_loop())

    class Reading:
        def poll(self):
            async_to_sync(read)()
            return Over()

    class ReadingTrigger(CountdownTrigger):
        def make_poller(self, log):
            return Reading()

    async def main():
        loops.append(asyncio.get_running_loop())
        return [event.payload async for event in ReadingTrigger(0.0).run()]

    assert asyncio.run(main()) == [{"over": True}]
    assert loops == [loops[0]] * 2


def test_a_request_to_the_supervisor_is_not_cancelled_with_the_trigger(monkeypatch):
    async def read(sent, reply, ended):
        sent.set()
        try:
            await reply.wait()
            ended.set_result("reply")
        except asyncio.CancelledError:
            ended.set_result("cancelled, so that the reply is read as that to the next request")
            raise

    async def main():
        sent, reply, ended = asyncio.Event(), asyncio.Event(), asyncio.Future()

        class Reading:
            def poll(self):
                async_to_sync(read)(sent, reply, ended)
                return Over()

        class ReadingTrigger(CountdownTrigger):
            def make_poller(self, log):
                return Reading()

        async def events():
            return [event async for event in ReadingTrigger(0.0).run()]

        task = asyncio.create_task(events())
        await sent.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        reply.set()
        return await ended

    monkeypatch.setattr(module, "CALLS_ON_KILL", True)
    assert asyncio.run(main()) == "reply"


class KilledTrigger(CountdownTrigger):
    def __init__(self):
        super().__init__(3600.0)
        self.ends = 0
        self.task_instance = SimpleNamespace(dag_id="d", task_id="t", run_id="r", map_index=-1)

    async def on_kill(self):
        await self.end_unless_awaited(self.end)

    def end(self):
        self.ends += 1


@pytest.fixture
def states(monkeypatch):
    """Replies to the next request for the state of a task; they may be an error."""
    replies = []

    def get_task_states(**which):
        assert which == {"dag_id": "d", "task_ids": ["t"], "run_ids": ["r"], "map_index": -1}
        reply = replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(get_task_states))
    yield replies
    assert not replies


async def cancelled(trigger):
    async def events():
        return [event async for event in trigger.run()]

    task = asyncio.create_task(events())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


#: What a trigger ends, and what it leaves: a list of tasks has the map index in its keys.
ENDED = [{"r": {"t": state}} for state in ("failed", "success", "skipped", "queued", None)]
LEFT = [{"r": {"t": "deferred"}}, {"r": {"t_7": "deferred"}}]


@pytest.mark.parametrize("reply", ENDED)
def test_below_airflow_3_3_a_cancelled_trigger_ends_what_a_marked_or_cleared_task_waited_for(
    reply, states, monkeypatch
):
    monkeypatch.setattr(module, "CALLS_ON_KILL", False)
    states.append(reply)
    trigger = KilledTrigger()
    asyncio.run(cancelled(trigger))
    assert trigger.ends == 1


@pytest.mark.parametrize("reply", LEFT)
def test_below_airflow_3_3_a_trigger_whose_triggerer_stops_ends_nothing(reply, states, monkeypatch):
    monkeypatch.setattr(module, "CALLS_ON_KILL", False)
    states.append(reply)
    trigger = KilledTrigger()
    asyncio.run(cancelled(trigger))
    assert trigger.ends == 0


def test_from_airflow_3_3_on_only_airflow_calls_on_kill(states, monkeypatch):
    monkeypatch.setattr(module, "CALLS_ON_KILL", True)
    trigger = KilledTrigger()
    asyncio.run(cancelled(trigger))
    assert trigger.ends == 0


@pytest.mark.parametrize(("reply", "ends"), [*((one, 1) for one in ENDED), *((one, 0) for one in LEFT)])
def test_on_kill_reads_the_state_of_the_task_as_another_triggerer_may_have_taken_over(reply, ends, states):
    states.append(reply)
    trigger = KilledTrigger()
    asyncio.run(trigger.on_kill())
    assert trigger.ends == ends


def test_the_state_of_a_task_is_requested_again_after_a_request_that_failed(states, monkeypatch):
    monkeypatch.setattr(module, "_STATE_PAUSE_SECONDS", 0.0)
    states += [EOFError("the API server restarts"), RuntimeError("HTTP 503"), {"r": {"t": "failed"}}]
    trigger = KilledTrigger()
    asyncio.run(trigger.on_kill())
    assert trigger.ends == 1


@pytest.fixture
def unknown_state(monkeypatch):
    """Requests for the state of a task fail; each is counted."""
    requests = []

    def get_task_states(**which):
        requests.append(which)
        raise EOFError("no reply")

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(get_task_states))
    return requests


def test_what_a_task_waited_for_is_left_and_logged_if_its_state_stays_unknown(unknown_state, monkeypatch, capfd):
    monkeypatch.setattr(module, "_STATE_SECONDS", 0.2)
    monkeypatch.setattr(module, "_STATE_PAUSE_SECONDS", 0.0)
    trigger = KilledTrigger()
    asyncio.run(trigger.on_kill())
    assert (trigger.ends, len(unknown_state) > 1) == (0, True)
    assert "The state of the task is unknown, so what it waited for is left running." in capfd.readouterr().out


def test_a_triggerer_that_stops_while_a_state_is_unknown_logs_what_it_leaves(unknown_state, monkeypatch, capfd):
    async def stopped():
        killing = asyncio.create_task(KilledTrigger().on_kill())
        while not unknown_state:  # noqa: ASYNC110 - the request knows no event loop
            await asyncio.sleep(0)
        killing.cancel()

    asyncio.run(stopped())  # cancels all tasks, as the end of a triggerer does
    assert "The state of the task is unknown, so what it waited for is left running." in capfd.readouterr().out


@pytest.fixture
def slow_state(monkeypatch):
    """The state of a task is requested, and then known: two events; it is that of a task that was marked."""
    asked, known = Event(), Event()

    def get_task_states(**which):
        asked.set()
        assert known.wait(60)
        return {"r": {"t": "failed"}}

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(get_task_states))
    return asked, known


def test_a_marked_task_is_ended_though_airflow_cancels_on_kill_before_the_state_is_known(slow_state):
    (asked, known), ended = slow_state, Event()
    trigger = KilledTrigger()
    trigger.end = ended.set

    async def main():
        killing = asyncio.create_task(trigger.on_kill())
        assert await asyncio.to_thread(asked.wait, 60)
        killing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await killing
        known.set()
        return await asyncio.to_thread(ended.wait, 60)

    assert asyncio.run(main())


def test_below_airflow_3_3_a_state_that_is_not_known_does_not_hold_up_a_triggerer_and_is_acted_on_later(
    slow_state, monkeypatch
):
    monkeypatch.setattr(module, "CALLS_ON_KILL", False)
    monkeypatch.setattr(module, "_STOP_SECONDS", 0.0)
    (_, known), ended = slow_state, Event()
    trigger = KilledTrigger()
    trigger.end = ended.set

    async def main():
        await cancelled(trigger)
        assert not ended.is_set()
        known.set()
        return await asyncio.to_thread(ended.wait, 60)

    assert asyncio.run(main())
