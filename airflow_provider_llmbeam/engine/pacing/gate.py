"""Where requests queue for the governor, and for a place among those under way."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Admission(Protocol):
    """A `Governor`, of this process or shared by the machine."""

    def admit(self, now: float, tokens: float) -> float:
        """See `Governor.admit`."""
        ...

    def settle(self, reserved_tokens: float, used_tokens: float, *, is_answered: bool = False) -> None:
        """See `Governor.settle`."""

    def rejected(self, now: float, retry_after_seconds: float | None, chance: float = 0.0) -> float:
        """See `Governor.rejected`."""
        ...


@dataclass(slots=True)
class _Waiter:
    tokens: float
    turn: asyncio.Future[None]


class Gate:
    """Lets requests out in the order of their coming, retries before fresh ones.

    Args:
        governor: Decides when.
        clock: Seconds, the same for all processes of the machine.
    """

    #: Other processes share the governor, and a 429 of theirs changes it: ask again after this at the latest.
    LONGEST_WAIT_SECONDS = 1.0
    #: With this much of unused spacing a late event loop makes up for its lateness.
    SPACING_CREDIT_SECONDS = 0.02

    def __init__(self, governor: Admission, clock: Callable[[], float]) -> None:
        self.governor = governor
        self._clock = clock
        self._retries: deque[_Waiter] = deque()
        self._fresh: deque[_Waiter] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._quickest_seconds = float("inf")
        self._spacing_seconds = 0.0
        self._line = float("-inf")
        self._blocked_since: float | None = None
        #: Seconds that somebody has waited for the governor so far.
        self.waited_seconds = 0.0

    async def pass_through(self, tokens: float, *, is_retry: bool) -> None:
        """Waits until the request may leave."""
        if (
            self._timer is None
            and not self._retries
            and not self._fresh
            and self._wait(self._clock(), tokens) == 0
        ):
            return
        waiter = _Waiter(tokens, asyncio.get_running_loop().create_future())
        (self._retries if is_retry else self._fresh).append(waiter)
        if self._timer is None:
            self._let_out()
        await waiter.turn

    def answered(self, latency_seconds: float, places: int) -> None:
        """Learns how far apart requests have to be so that answers do not come all at once.

        Requests sent in one burst come back in one, wait for each other's processing, and leave in a burst again:
        128 in flight at 200 ms made 430 requests/s of the possible 640 that way, and 550 when spread over the
        quickest latency seen (on two busy cores).
        """
        self._quickest_seconds = min(self._quickest_seconds * 1.01, latency_seconds)
        self._spacing_seconds = self._quickest_seconds / places / 1.05

    def rejected(self, retry_after_seconds: float | None) -> float:
        """Passes a 429 on; returns the seconds of the hold."""
        return self.governor.rejected(self._clock(), retry_after_seconds, random.random())

    def dismiss(self) -> None:
        """Lets everybody go at once, admitted or not: nothing will be sent any more."""
        for waiter in (*self._retries, *self._fresh):
            if not waiter.turn.done():
                waiter.turn.set_result(None)
        self._retries.clear()
        self._fresh.clear()

    def _let_out(self) -> None:
        """Lets out everybody whose time has come, then sleeps until the next one's."""
        now, self._timer = self._clock(), None
        if self._blocked_since is not None:
            self.waited_seconds += now - self._blocked_since
            self._blocked_since = None
        while queue := self._retries or self._fresh:
            if not queue[0].turn.done():
                if (wait := self._wait(now, queue[0].tokens)) > 0:
                    self._timer = asyncio.get_running_loop().call_later(wait, self._let_out)
                    return
                queue[0].turn.set_result(None)
            queue.popleft()

    def _wait(self, now: float, tokens: float) -> float:
        """Lets one request out and returns 0, or the seconds after which to ask again."""
        line = max(self._line, now - self.SPACING_CREDIT_SECONDS)
        if line > now:
            return line - now
        if (wait := self.governor.admit(now, tokens)) > 0:
            self._blocked_since = now
            return min(wait, self.LONGEST_WAIT_SECONDS)
        self._line = line + self._spacing_seconds
        return 0.0


class Slots:
    """Places among the requests under way; their number may change at any time.

    Args:
        limit: Read each time a place is asked for.
    """

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._taken = 0
        self._queue: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> None:
        """Waits for a place and takes it."""
        while self._taken >= self._limit():
            turn = asyncio.get_running_loop().create_future()
            self._queue.append(turn)
            await turn
        self._taken += 1

    async def __aexit__(self, *_: object) -> None:
        """Gives the place back."""
        self._taken -= 1
        self._wake()

    def _wake(self) -> None:
        free = self._limit() - self._taken
        while free > 0 and self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                free -= 1
