"""Where requests queue for the governor, and for a place among those under way."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol


class Admission(Protocol):
    """A `Governor`, of this process or shared by the machine."""

    def admit(self, now: float, tokens: float) -> float:
        """See `Governor.admit`."""
        ...

    def settle(self, reserved_tokens: float, used_tokens: float) -> None:
        """See `Governor.settle`."""

    def answered(self) -> None:
        """See `Governor.answered`."""

    def rejected(self, now: float, retry_after_seconds: float | None, chance: float = 0.0) -> float:
        """See `Governor.rejected`."""
        ...


class Gate:
    """Lets requests out one by one, in the order of their coming, retries before fresh ones.

    Args:
        governor: Decides when.
        clock: Seconds, the same for all processes of the machine.
    """

    def __init__(self, governor: Admission, clock: Callable[[], float]) -> None:
        self.governor = governor
        self._clock = clock
        self._head = asyncio.Lock()
        self._fresh = asyncio.Lock()
        #: Seconds that the head of the queue has waited for the governor so far.
        self.waited_seconds = 0.0

    async def pass_through(self, tokens: float, *, is_retry: bool) -> None:
        """Waits until the request may leave."""
        if is_retry:
            await self._admission(tokens)
        else:
            # Of the fresh ones a single one stands in the queue proper, so a retry passes all the others.
            async with self._fresh:
                await self._admission(tokens)

    def rejected(self, retry_after_seconds: float | None) -> float:
        """Passes a 429 on; returns the seconds of the hold."""
        return self.governor.rejected(self._clock(), retry_after_seconds, random.random())

    async def _admission(self, tokens: float) -> None:
        async with self._head:
            came = self._clock()
            # In steps, as other processes share the governor and a 429 of theirs changes it.
            while (wait := self.governor.admit(self._clock(), tokens)) > 0:  # noqa: ASYNC110 - a clock, no event
                await asyncio.sleep(min(wait, 1.0))
            self.waited_seconds += self._clock() - came


class Slots:
    """Places among the requests under way; their number may change at any time.

    Args:
        limit: Read each time a place is asked for.
    """

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._taken = 0
        self._queue: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Holds a place while the body runs."""
        while self._taken >= self._limit():
            turn = asyncio.get_running_loop().create_future()
            self._queue.append(turn)
            await turn
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1
            self._wake()

    def _wake(self) -> None:
        free = self._limit() - self._taken
        while free > 0 and self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                free -= 1
