"""The timeout of requests."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any


class Timeout:
    """Ends what takes longer than a given time with a `TimeoutError`, like `asyncio.timeout`.

    It has one timer for all tasks, as the time is the same for all: a timer for each request was 18 % of the
    processor time of the engine (echo model). A task enters it once at a time.

    Args:
        seconds: The time.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        # By task, in the order of the deadlines: the deadline, and the number of its cancellations before.
        self._running: dict[asyncio.Task[Any], tuple[float, int]] = {}
        self._expired: dict[asyncio.Task[Any], int] = {}
        #: The loop that has the timer.
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> None:
        """Begins the time of the current task."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        deadline = loop.time() + self._seconds
        self._running[task] = deadline, task.cancelling()
        if self._loop is not loop:
            self._loop = loop
            loop.call_at(deadline, self._expire, loop)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Ends the time of the current task.

        Raises:
            TimeoutError: It was too long, and nobody else has cancelled the task.
        """
        task = asyncio.current_task()
        assert task is not None
        if self._running.pop(task, None) is None:
            cancellations = self._expired.pop(task)
            if task.uncancel() <= cancellations and kind is asyncio.CancelledError:
                raise TimeoutError from error

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancels the tasks whose time is over, and sets the timer to the next deadline."""
        now = loop.time()
        for task, (deadline, cancellations) in list(self._running.items()):
            if deadline > now:
                loop.call_at(deadline, self._expire, loop)
                return
            del self._running[task]
            self._expired[task] = cancellations
            task.cancel()
        self._loop = None
