"""The trigger that polls without a worker slot."""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, ClassVar, Generic, ParamSpec, TypeVar

from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from airflow_provider_llmbeam.integrations.opentelemetry import record_poll
from airflow_provider_llmbeam.polling.poller import Poller, PollResult, TaskLog, Wait
from airflow_provider_llmbeam.polling.schedule import FIRST_POLL_DELAY_SECONDS
from airflow_provider_llmbeam.triggers.airflow_compat import CALLS_ON_KILL

PollerT = TypeVar("PollerT", bound=Poller[PollResult])
ParamsT = ParamSpec("ParamsT")
ReturnT = TypeVar("ReturnT")

#: Concurrent polls in one triggerer. A poll mostly waits for replies, up to 10 s if it sends 8 probe requests:
#: 200 sensors that poll once a minute need 33. The threads of `asyncio.to_thread` are 6 on two cores, and other
#: triggers wait for them.
_MAX_CONCURRENT_POLLS = 64

#: Time for which the state of a task is requested, and the pause after a request that failed, in seconds.
_STATE_SECONDS = 90.0
_STATE_PAUSE_SECONDS = 5.0
#: Time for which a triggerer that stops is held up below Airflow 3.3, in seconds; it may receive no reply.
_STOP_SECONDS = 10.0


@cache
def _threads() -> ThreadPoolExecutor:
    """Returns the threads in which the triggers of this process poll, cancel and remove."""
    return ThreadPoolExecutor(_MAX_CONCURRENT_POLLS, thread_name_prefix="llmbeam-poll")


async def in_thread(
    function: Callable[ParamsT, ReturnT], *args: ParamsT.args, **kwargs: ParamsT.kwargs
) -> ReturnT:
    """Runs a blocking function in a thread, which continues if the caller is cancelled.

    A function that reads an Airflow connection sends a request to the supervisor of the triggerer. If that request
    is cancelled before the reply, the triggerer of Airflow 3.1.8 ends: "Response read out of order!".
    """
    # The thread gets the context, so that its lines reach the task's log. asgiref passes on this event loop, the
    # only one in which Airflow 3.1 can read a connection.
    call = sync_to_async(function, thread_sensitive=False, executor=_threads())
    return await asyncio.shield(call(*args, **kwargs))


class PollingTrigger(BaseTrigger, Generic[PollerT]):
    """Polls until there is a result, and fires one event: `PollResult.to_event`.

    Another triggerer can take the trigger over: the state is in the arguments, and in the service that is polled.

    Args:
        delay_seconds: Delay of the first poll; at least `first_poll_delay_seconds`.
        jitter_seconds: Longest random addition to that delay, so that many tasks that were deferred at once, or
            taken over by another triggerer at once, do not poll at once.
    """

    #: Shortest delay of the first poll, in seconds.
    first_poll_delay_seconds: ClassVar[float] = FIRST_POLL_DELAY_SECONDS
    #: States of the task in which a trigger that is cancelled leaves what it polls alone.
    awaited_states: ClassVar[frozenset[str]] = frozenset({"deferred"})

    def __init__(self, delay_seconds: float = 0.0, jitter_seconds: float = 0.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._delay_seconds = max(self.first_poll_delay_seconds, delay_seconds)
        self._jitter_seconds = jitter_seconds
        self._poller: PollerT | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Returns the class path and the keyword-only arguments; each is an attribute of the same name."""
        kinds = [kind for kind in type(self).__mro__ if issubclass(kind, PollingTrigger)]
        parameters = [one for kind in kinds for one in inspect.signature(kind.__init__).parameters.values()]
        names = dict.fromkeys(one.name for one in parameters if one.kind is one.KEYWORD_ONLY)
        return f"{kinds[0].__module__}.{kinds[0].__qualname__}", {name: getattr(self, name) for name in names}

    @abstractmethod
    def make_poller(self, log: TaskLog) -> PollerT:
        """Returns a new poller that writes to `log`."""

    @property
    def poller(self) -> PollerT:
        """The poller; a new one if `run()` has not started."""
        return self._poller or self.make_poller(self.log)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Polls, and yields one event."""
        self._poller = poller = self.make_poller(self.log)
        seconds = self._delay_seconds + random.uniform(0.0, self._jitter_seconds)
        try:
            while True:
                await asyncio.sleep(seconds)
                began = time.monotonic()
                # In a thread, with the blocking client that a worker uses too: one implementation, and reading the
                # Airflow connection also blocks.
                result = await in_thread(poller.poll)
                is_last = not isinstance(result, Wait)
                record_poll(type(self).__name__, time.monotonic() - began, is_last=is_last)
                if not isinstance(result, Wait):
                    break
                seconds = result.seconds
        except asyncio.CancelledError:
            if not CALLS_ON_KILL:
                await self._killed_below_3_3()
            raise
        yield TriggerEvent(result.to_event())  # type: ignore[no-untyped-call]

    async def _killed_below_3_3(self) -> None:
        """Calls `on_kill`, which goes on after this returns, unless the triggerer stops."""
        killing = asyncio.create_task(self.on_kill())
        if not (await asyncio.wait({killing}, timeout=_STOP_SECONDS))[0]:
            self.log.warning(
                "If this triggerer stops now, what a marked or cleared task waited for is left running."
            )

    async def on_kill(self) -> None:
        """Does nothing. Airflow calls this when the task is marked or cleared; before Airflow 3.3, `run` does."""

    async def cleanup(self) -> None:
        """Does nothing: this runs whenever a triggerer stops, and what is polled must outlive that."""

    async def end_unless_awaited(self, end: Callable[[], None]) -> None:
        """Calls a blocking function in a thread, unless the task is in one of `awaited_states`.

        Airflow 3.3.2 also calls `on_kill` when another triggerer has taken the trigger over, since this one missed
        heartbeats.
        """
        # Airflow cancels `on_kill` after about 1 s (3.3.2, measured), which may be before the reply.
        await asyncio.shield(self._end_unless_awaited(end))

    async def _end_unless_awaited(self, end: Callable[[], None]) -> None:
        if not await self._is_awaited():
            await in_thread(end)

    async def _is_awaited(self) -> bool:
        """Returns whether the task is in one of `awaited_states`.

        If it is deferred, the triggerer is stopping, or another one took over. Source: `safe_to_cancel` of the
        Dataproc triggers in the google provider 22.8.
        """
        try:
            async with asyncio.timeout(_STATE_SECONDS):
                return not self.awaited_states.isdisjoint(await self._states())
        except (Exception, asyncio.CancelledError):  # cancelled: the triggerer stops
            self.log.exception("The state of the task is unknown, so what it waited for is left running.")
            return True

    async def _states(self) -> Collection[str | None]:
        """Returns the state of the task, requested again until there is one: nobody else ends what it waited for.

        A request without a reply is not repeated, as the triggerer answers one request after the other.
        """
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        ti = self.task_instance
        assert ti is not None, "the triggerer sets it"
        while True:
            try:
                states = await in_thread(
                    RuntimeTaskInstance.get_task_states,
                    dag_id=ti.dag_id,
                    task_ids=[ti.task_id],
                    run_ids=[ti.run_id],
                    map_index=ti.map_index,
                )
            except Exception as error:  # noqa: BLE001 - of Airflow's database, or of its API
                self.log.warning("The state of the task cannot be read, and is requested again: %s", error)
                await asyncio.sleep(_STATE_PAUSE_SECONDS)
            else:
                found: dict[str, str | None] = states.get(ti.run_id, {})
                return found.values()
