"""Looks at something until it is over, without a worker slot."""

from __future__ import annotations

import asyncio
import random
from abc import abstractmethod
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Generic, TypeVar

from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from airflow_provider_llmbeam.airflow_compat import CALLS_ON_KILL
from airflow_provider_llmbeam.polling.poller import Poller, PollResult, Wait
from airflow_provider_llmbeam.polling.task_log import TaskLog

WatchT = TypeVar("WatchT", bound=Poller[PollResult])

#: Looks at once in one triggerer. A look waits for replies most of its time, up to 10 s where 8 requests are sent
#: to try: 200 sensors that look once a minute need 33. The threads of `asyncio.to_thread` are 6 on two cores,
#: and other triggers wait for them.
_LOOKS_AT_ONCE = 64

#: Until Airflow has told the state of a task; a triggerer that stops may not get an answer any more.
_STATE_SECONDS = 10.0


@cache
def _threads() -> ThreadPoolExecutor:
    """Those in which the triggers of this process look."""
    return ThreadPoolExecutor(_LOOKS_AT_ONCE, thread_name_prefix="llmbeam-look")


class PollingTrigger(BaseTrigger, Generic[WatchT]):
    """Looks until waiting is over, and fires one event: `PollResult.to_event`.

    A trigger that another triggerer takes over goes on: what it must know is in its arguments, and wherever the
    watch looks.

    Args:
        first_look_seconds: Before the first look.
        jitter_seconds: At most so much longer, by chance: many tasks that were deferred at once, or that another
            triggerer takes over at once, do not look at once.
    """

    def __init__(self, first_look_seconds: float, jitter_seconds: float = 0.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._first_look_seconds = first_look_seconds
        self._jitter_seconds = jitter_seconds
        self._watch: WatchT | None = None

    @abstractmethod
    def watch(self, log: TaskLog) -> WatchT:
        """Makes what looks; its lines go to `log`."""

    @property
    def watched(self) -> WatchT:
        """What looks; another one where the trigger did not run yet."""
        return self._watch or self.watch(self.log)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Waits, and yields one event."""
        self._watch = watch = self.watch(self.log)
        seconds = self._first_look_seconds + random.uniform(0.0, self._jitter_seconds)
        # In a thread, with the blocking client that a worker uses too: one implementation, and reading the Airflow
        # connection blocks anyhow. The thread gets the context, so its lines reach the task's log. asgiref tells
        # it of this event loop, the only one in which Airflow 3.1 can read a connection.
        look = sync_to_async(watch.look, thread_sensitive=False, executor=_threads())
        try:
            while True:
                await asyncio.sleep(seconds)
                seen = await look()
                if not isinstance(seen, Wait):
                    break
                seconds = seen.seconds
        except asyncio.CancelledError:
            if not CALLS_ON_KILL and not await self._is_awaited():
                await self.on_kill()
            raise
        yield TriggerEvent(seen.to_event())  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """Does nothing more when somebody marked or cleared the task. Below Airflow 3.3, `run` calls it."""

    async def cleanup(self) -> None:
        """Does nothing: this runs whenever a triggerer stops, and what is waited for must outlive that."""

    async def _is_awaited(self) -> bool:
        """Whether the task is still deferred: then the triggerer stops, or another one has taken the trigger over.

        Source: `safe_to_cancel` of the Dataproc triggers in the google provider 22.8.
        """
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        ti = self.task_instance
        assert ti is not None, "the triggerer sets it before `run`"
        states_of = sync_to_async(RuntimeTaskInstance.get_task_states, thread_sensitive=False)
        try:
            async with asyncio.timeout(_STATE_SECONDS):
                states = await states_of(
                    dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id], map_index=ti.map_index
                )
        except Exception:
            self.log.exception("The state of the task is not known, so what it waited for is left running.")
            return True
        return "deferred" in states.get(ti.run_id, {}).values()
