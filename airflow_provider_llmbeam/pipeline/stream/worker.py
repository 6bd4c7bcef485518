"""The resident worker: reads messages, has them answered, and commits answers and positions together.

Its state lives on the event loop of the engine. The client of the queue has one thread: it polls and commits, and
its callbacks ask the loop for what they change.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.pipeline.prompt_of_row import RowPrompts
from airflow_provider_llmbeam.pipeline.sources.messages import row_of_message
from airflow_provider_llmbeam.pipeline.stream.answers import Answers
from airflow_provider_llmbeam.pipeline.stream.flow import (
    MAX_DOWN_SECONDS,
    down_since,
    parts_to_pause,
    room,
    seconds_to_commit,
)
from airflow_provider_llmbeam.pipeline.stream.histories import Histories
from airflow_provider_llmbeam.pipeline.stream.member import RestartError
from airflow_provider_llmbeam.pipeline.stream.metrics import Metrics
from airflow_provider_llmbeam.pipeline.stream.outputs import Outputs
from airflow_provider_llmbeam.pipeline.stream.partition import (
    Commit,
    Message,
    Partition,
    Place,
    finish,
    prepare,
)
from airflow_provider_llmbeam.pipeline.stream.queue import KEPT, QueueMember
from airflow_provider_llmbeam.pipeline.stream.state import StreamState
from airflow_provider_llmbeam.pipeline.stream.stores import Stores
from airflow_provider_llmbeam.pipeline.stream.windows import increment_of
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.source import KafkaSource, PubSubSource
from airflow_provider_llmbeam.spec.stream import StreamRun

_log = logging.getLogger("llmbeam")
ResultT = TypeVar("ResultT")

#: Longest time for which the thread of the client waits for a message, in seconds.
_POLL_SECONDS = 0.1
#: Time without room after which partitions are paused, in seconds: the client drops what it has fetched of them.
#: Paused at once, a worker with 128 messages under way answered 256 messages per second.
_PAUSE_SECONDS = 1.0
#: Messages that are taken from the client at once.
_POLL_MESSAGES = 500
#: Time after which a member without partitions has nothing to drain, in seconds.
_UNASSIGNED_SECONDS = 20.0
#: Interval at which a worker that drains leaves what became unsent, in seconds.
_DRAIN_SECONDS = 0.1
#: Time between two attempts to join again, in seconds.
_RETRY_SECONDS = 1.0
#: Weight of the last transaction in the time that one takes.
_WEIGHT = 0.2


class StreamWorker:
    """Answers the messages of the partitions that its group gives it.

    Args:
        spec: The job.
        source: Its source.
        run: The process.
        open_member: Opens the member of the group, with what takes new, revoked and lost partitions.
        answers: Answers messages.
        histories: The conversations; `None` without any.
        outputs: Makes the records of messages.
        stores: Sinks outside Kafka.
        state: What the worker shows, and whether it is to end.
        metrics: Windows of what it does.
        share_quota: Takes the number of machines that share the quota; `None` if it is stated or learned.
    """

    def __init__(
        self,
        spec: JobSpec,
        source: KafkaSource | PubSubSource,
        run: StreamRun,
        open_member: Callable[..., QueueMember],
        answers: Answers,
        histories: Histories | None,
        outputs: Outputs,
        stores: Stores,
        state: StreamState,
        metrics: Metrics,
        share_quota: Callable[[float], None] | None,
    ) -> None:
        self._spec, self._source, self._run, self._options = spec, source, run, spec.stream
        self._histories = histories
        self._answers, self._state, self._counts = answers, state, state.counts
        self._outputs, self._stores, self._metrics = outputs, stores, metrics
        self._share_quota = share_quota
        self._prompts = RowPrompts(spec)
        self._member = open_member(self._on_assigned, self._on_revoked, self._on_lost)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="llmbeam-queue")
        self._loop = asyncio.get_running_loop()
        topics = source.topic if isinstance(source, KafkaSource) else (source.subscription,)
        self._first = topics[0], 0
        self._partitions: dict[Place, Partition] = {}
        self._paused: frozenset[Place] = frozenset()
        self._error: BaseException | None = None
        self._has_settled = asyncio.Event()
        self._began_at, self._joined_at = time.time(), math.inf
        self._tried_at = self._committed_at = self._reported_at = 0.0
        self._down_since: float | None = None

    async def run(self) -> None:
        """Works until it is stopped, its time is over, or nothing is left to drain.

        Raises:
            LLMBeamError: Nothing can be answered, or the queue refuses. What was answered before is committed.
        """
        try:
            while True:
                try:
                    await self._in_thread(self._member.open)
                    self._joined_at = time.time()
                    await self._work()
                    return
                except RestartError as error:
                    if self._state.is_stopping:
                        _log.warning("The last answers stay in the journal, and are not committed: %s", error)
                        return
                    await self._restart(error)
        finally:
            # What is paid is in the journal before the messages go to others, also after an error.
            await self._drain([*self._partitions], self._options.drain_seconds)
            await self._in_thread(self._member.close)
            self._report(time.time())
            self._thread.shutdown()
            self._answers.close()

    async def _work(self) -> None:
        while self._error is None and not self._is_over(now := time.time()):
            wait = min(_POLL_SECONDS, self._options.commit_interval_ms / 1000, self._seconds_to_commit(now))
            most = min(_POLL_MESSAGES, self._room())
            if most == 0 and now - self._state.polled_at < _PAUSE_SECONDS:
                await self._wait_for_room(wait)
            else:
                await self._pause_or_resume()
                await self._in_thread(self._poll, most, wait)
                self._state.polled_at = time.time()
            now = time.time()
            if self._seconds_to_commit(now) == 0:
                await self._in_thread(self._commit, [*self._partitions])
            if now - self._reported_at >= self._options.report_seconds:
                await self._in_thread(self._measure_lag)
                self._report(now)
        await self._in_thread(self._settle, [*self._partitions])
        await self._in_thread(self._measure_lag)
        if self._error is not None:
            raise self._error

    def _is_over(self, now: float) -> bool:
        limit = self._run.run_for_seconds
        if self._state.is_stopping or (limit is not None and now - self._began_at >= limit):
            return True
        if not self._run.drain or self._state.assigned is None:
            return False
        if not self._partitions:
            return now - self._joined_at >= _UNASSIGNED_SECONDS
        return all(each.is_at_end and each.order.is_empty for each in self._partitions.values())

    def _seconds_to_commit(self, now: float) -> float:
        ready, first_at, most = 0, math.inf, self._options.max_answers
        for each in self._partitions.values():
            for number, (_, result) in enumerate(each.order.ready(most if each.order.held >= most else 1)):
                ready += 1
                if not number and result.message.produced_at is not None:
                    first_at = min(first_at, result.message.produced_at)
        return seconds_to_commit(ready, first_at, self._tried_at, self._state.commit_seconds, self._options, now)

    def _room(self) -> int:
        unsettled = sum(each.order.unsettled for each in self._partitions.values())
        return room(unsettled, self._spec.limits.max_in_flight)

    async def _wait_for_room(self, seconds: float) -> None:
        self._has_settled.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._has_settled.wait()

    async def _pause_or_resume(self) -> None:
        # With a little room it would stop and go with each message.
        has_room = self._room() >= (self._spec.limits.max_in_flight if self._state.is_paused else 1)
        held = {place: (each.order.held, each.order.held_bytes) for place, each in self._partitions.items()}
        paused = parts_to_pause(held, self._paused, has_room=has_room, options=self._options)
        self._state.is_paused = not has_room
        if paused != self._paused:
            self._paused = paused
            await self._in_thread(self._member.pause, paused)

    async def _restart(self, error: RestartError) -> None:
        """Closes the member, so that a new one continues from the committed positions and the journal."""
        now = time.time()
        self._down_since = down_since(self._down_since, self._joined_at, self._committed_at, now)
        self._joined_at = math.inf
        if now - self._down_since > MAX_DOWN_SECONDS:
            raise JobFailedError(
                f"`source`: the worker has joined again and again for {MAX_DOWN_SECONDS:.0f} s, and could not go "
                f"on: {error}. {KEPT}"
            ) from error
        self._counts.restarts += 1
        _log.warning("The member is closed, and joins again: %s", error)
        # What is paid meanwhile is in the journal before the new member reads it.
        await self._drain([*self._partitions], MAX_DOWN_SECONDS)
        await self._in_thread(self._member.close)
        self._remove([*self._partitions])
        self._paused, self._state.assigned = frozenset(), None
        await asyncio.sleep(_RETRY_SECONDS)

    def _report(self, now: float) -> None:
        self._reported_at, state, every = now, self._state, [*self._partitions.values()]
        state.unsettled = sum(each.order.unsettled for each in every)
        state.held = sum(each.order.held for each in every)
        state.held_bytes = sum(each.order.held_bytes for each in every)
        print(json.dumps({"at": round(now, 3), **state.plain()}), flush=True)  # noqa: T201 - for who started it

    # On the thread of the client:

    def _poll(self, most: int, seconds: float) -> None:
        """Reads messages, and makes their prompts."""
        now = time.time()
        found: list[tuple[Place, Message | None]] = []
        for place, each in self._member.poll(most, seconds):
            if each is None:
                found.append((place, None))
                continue
            row = row_of_message(each.columns, each.value, self._source.value_format)
            prompt = self._prompts.prompt_of_row(row)
            found.append((place, Message(each.offset, each.key, each.produced_at, now, prompt, id=each.id)))
        if found:
            self._loop.call_soon_threadsafe(self._take, found)

    def _commit(self, places: Collection[Place]) -> bool | None:
        """Commits what is ready of some partitions; returns whether it is committed, `None` for nothing."""
        began_at, at_ms = time.monotonic(), time.time_ns() // 1_000_000
        commits = self._on_loop(self._prepare, places)
        if not commits:
            return None
        is_committed = False
        try:
            commits = self._stores.put(commits)
            increment = increment_of(commits, at_ms, self._state.commit_seconds)
            is_committed = self._member.commit(commits, at_ms, self._metrics.record(increment, at_ms))
        finally:
            self._on_loop(self._finish, commits, is_committed, time.monotonic() - began_at)
        if is_committed:
            self._on_loop(self._metrics.add, increment, at_ms)
        return is_committed

    def _settle(self, places: Collection[Place]) -> None:
        """Awaits what is in flight of some partitions, and commits it, if that succeeds in `drain_seconds`."""
        until = time.monotonic() + self._options.drain_seconds
        self._await_drain(places)
        while (is_committed := self._commit(places)) is not None:
            if is_committed:
                continue
            if time.monotonic() >= until:
                _log.warning("The last answers are in the journal, and not committed: the transaction is aborted.")
                return
            time.sleep(_POLL_SECONDS)

    def _await_drain(self, places: Collection[Place]) -> None:
        draining = self._drain(places, self._options.drain_seconds)
        asyncio.run_coroutine_threadsafe(draining, self._loop).result()

    def _measure_lag(self) -> None:
        self._state.lags = self._member.lags(
            [(place, each.order.position) for place, each in [*self._partitions.items()]]
        )

    def _on_assigned(self, partitions: Sequence[Partition]) -> None:
        self._on_loop(self._add, partitions)
        if self._share_quota is not None and (machines := self._member.machines()) is not None:
            self._on_loop(self._share_quota, machines)

    def _on_revoked(self, places: Collection[Place]) -> None:
        try:
            self._settle(places)
        finally:
            self._on_loop(self._remove, places)

    def _on_lost(self, places: Collection[Place]) -> None:
        _log.warning("Partitions were lost to another member, which answers their messages: %s", sorted(places))
        self._await_drain(places)
        self._on_loop(self._remove, places)

    def _on_loop(self, change: Callable[..., ResultT], *given: Any) -> ResultT:
        async def do() -> ResultT:
            return change(*given)

        return asyncio.run_coroutine_threadsafe(do(), self._loop).result()

    # On the event loop:

    def _in_thread(self, work: Callable[..., ResultT], *given: Any) -> Awaitable[ResultT]:
        return self._loop.run_in_executor(self._thread, partial(work, *given))

    def _add(self, partitions: Sequence[Partition]) -> None:
        self._partitions.update((each.place, each) for each in partitions)
        self._show_assigned()

    def _remove(self, places: Collection[Place]) -> None:
        for place in places:
            self._partitions.pop(place, None)
            if self._histories is not None:
                self._histories.drop(place)
        self._paused -= frozenset(places)
        self._show_assigned()

    def _show_assigned(self) -> None:
        self._state.assigned = len(self._partitions)
        self._state.may_lead = self._first in self._partitions

    def _take(self, found: Sequence[tuple[Place, Message | None]]) -> None:
        """Begins to answer messages; `None` is the end of a partition."""
        for place, message in found:
            partition = self._partitions.get(place)
            if partition is None:  # revoked in the same poll
                continue
            partition.is_at_end = message is None
            if message is not None and partition.order.take(message.offset):
                self._counts.consumed += 1
                partition.open.add(message)
                message.task = self._loop.create_task(self._answer(partition, message))

    async def _answer(self, partition: Partition, message: Message) -> None:
        try:
            answered = await self._answers.answer(partition, message)
            result = self._outputs.result(message, answered)
            partition.order.settle(message.offset, result, len(result.value))
            self._has_settled.set()
        except Exception as error:  # noqa: BLE001 - ends the worker, and the positions stay
            self._error = self._error or error
        finally:
            partition.open.discard(message)

    async def _drain(self, places: Collection[Place], seconds: float) -> None:
        """Awaits the answers to what is sent of some partitions, once; the rest is left to their next owner."""
        ends_at = time.monotonic() + seconds
        partitions = [self._partitions[place] for place in places if place in self._partitions]
        every = [each for partition in partitions for each in partition.open]
        while opened := [(each, each.task) for each in every if each.task and not each.task.done()]:
            for message, task in opened:  # one whose prompt was judged, and waits to be sent now, too
                if not message.is_sent and not task.cancelling():
                    task.cancel()
            left = ends_at - time.monotonic()
            await asyncio.wait([task for _, task in opened], timeout=max(0.0, min(left, _DRAIN_SECONDS)))
            if left <= 0:
                break
        for partition in partitions:
            partition.open.clear()

    def _prepare(self, places: Collection[Place]) -> list[Commit]:
        commits, left = [], self._options.max_answers
        for place in places:
            if left > 0 and (partition := self._partitions.get(place)) is not None:
                commit = prepare(partition, left)
                if commit is not None:
                    commits.append(commit)
                    left -= len(commit.results)
        return commits

    def _finish(self, commits: Sequence[Commit], is_committed: bool, seconds: float) -> None:
        now, budget = time.time(), self._options.latency_budget_ms
        self._state.commit_seconds += _WEIGHT * (seconds - self._state.commit_seconds)
        self._tried_at = now
        for commit in commits:
            finish(commit, is_committed=is_committed)
            if is_committed and self._histories is not None:
                self._histories.put(commit.partition.place, commit.states.items(), now)
        if not is_committed:
            self._counts.aborted += 1
            return
        self._committed_at = now
        self._counts.transactions += 1
        for result in (result for commit in commits for result in commit.results):
            self._counts.committed += result.is_answered
            self._counts.dead_letter += not result.is_answered
            latency = now - (result.message.produced_at or result.message.consumed_at)
            self._state.latencies.append(latency)
            self._counts.late += budget is not None and latency > budget / 1000
