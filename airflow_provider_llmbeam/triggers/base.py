"""Looks at something until it is over, without a worker slot."""

from __future__ import annotations

import asyncio
import random
from abc import abstractmethod
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import cache
from typing import Generic, TypeVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_llmbeam.polling.poller import Poller, PollResult, Wait
from airflow_provider_llmbeam.polling.task_log import TaskLog

WatchT = TypeVar("WatchT", bound=Poller[PollResult])

#: Looks at once in one triggerer. A look waits for replies most of its time, up to 10 s where 8 requests are sent
#: to try: 200 sensors that look once a minute need 33. The threads of `asyncio.to_thread` are 6 on two cores,
#: and other triggers wait for them.
_LOOKS_AT_ONCE = 64


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
        while True:
            await asyncio.sleep(seconds)
            # In a thread, with the blocking client that a worker uses too: one implementation, and reading the
            # Airflow connection blocks anyhow. The thread gets the context, so its lines reach the task's log.
            seen = await asyncio.get_running_loop().run_in_executor(_threads(), copy_context().run, watch.look)
            if not isinstance(seen, Wait):
                yield TriggerEvent(seen.to_event())  # type: ignore[no-untyped-call]
                return
            seconds = seen.seconds

    async def cleanup(self) -> None:
        """Does nothing: this runs whenever a triggerer stops, and what is waited for must outlive that."""
