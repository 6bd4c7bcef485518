"""Queues of requests that wait for the governor, and for a slot among the requests in flight."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from airflow_provider_llmbeam.engine.pacing.rejection import Rejection


class Admission(Protocol):
    """A `Governor` or a `LearnedRate` of this process, or one that the machine shares."""

    def admit(self, now: float, tokens: float, backlog: float = 0.0) -> float:
        """See `LearnedRate.admit`."""
        ...

    def settle(self, reserved_tokens: float, used_tokens: float, *, is_answered: bool = False) -> None:
        """See `Governor.settle`."""

    def rejected(self, now: float, rejection: Rejection) -> float:
        """See `LearnedRate.rejected`."""
        ...

    def share_among(self, machines: float) -> None:
        """See `Governor.share_among`."""


@dataclass(slots=True)
class _Waiter:
    reserve: Callable[[], float]
    turn: asyncio.Future[float]


class Gate:
    """Admits requests in the order of their arrival, retries first.

    Args:
        governor: Decides when a request may be sent.
        clock: Clock in seconds, the same for all processes of the machine.
        has_ended: Whether nothing is sent now, so that no request waits.
    """

    #: Maximum time between two calls of the governor: 429s of other processes change a shared one.
    LONGEST_WAIT_SECONDS = 1.0
    #: Unused spacing that a late event loop may catch up.
    SPACING_CREDIT_SECONDS = 0.02
    #: Maximum spacing of requests: ten answers per second keep no processor busy. Without it, two requests that a
    #: server held for 25 minutes had the next ones sent 12 minutes apart.
    MAX_SPACING_SECONDS = 0.1

    def __init__(
        self, governor: Admission, clock: Callable[[], float], has_ended: Callable[[], bool] = lambda: False
    ) -> None:
        self.governor = governor
        self._clock, self._has_ended = clock, has_ended
        self._retries: deque[_Waiter] = deque()
        self._fresh: deque[_Waiter] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._lowest_latency_seconds = float("inf")
        self._spacing_seconds = 0.0
        self._line = float("-inf")
        self._blocked_since: float | None = None
        #: Number of requests that are not yet answered.
        self.backlog = 0
        #: Time in which requests have waited for the governor so far, in seconds.
        self.waited_seconds = 0.0

    async def wait_for_admission(self, reserve: Callable[[], float], *, is_retry: bool) -> tuple[float, float]:
        """Waits until the request may be sent.

        Args:
            reserve: Returns the tokens of the request, for all that is known of answers when it is called.
            is_retry: Whether the request goes before those that were never sent.

        Returns:
            Tokens with which it was admitted, and the time that it waited, in seconds.
        """
        tokens = reserve()
        if self._has_ended():
            return tokens, 0.0
        if (
            self._timer is None
            and not self._retries
            and not self._fresh
            and self._wait(self._clock(), tokens) == 0
        ):
            return tokens, 0.0
        since = self._clock()
        waiter = _Waiter(reserve, asyncio.get_running_loop().create_future())
        (self._retries if is_retry else self._fresh).append(waiter)
        if self._timer is None:
            self._release_admitted()
        tokens = await waiter.turn
        return tokens, self._clock() - since

    def answered(self, latency_seconds: float, max_in_flight: int) -> None:
        """Updates the spacing of requests, so that their answers do not arrive all at once.

        Answers to a burst of requests arrive as a burst, wait for each other's processing, and cause the next
        burst: 128 in flight at 200 ms gave 430 requests/s of the possible 640, and 550 when spread over the lowest
        measured latency (on two busy cores).
        """
        self._lowest_latency_seconds = min(self._lowest_latency_seconds * 1.01, latency_seconds)
        spacing_seconds = self._lowest_latency_seconds / max_in_flight / 1.05
        self._spacing_seconds = min(spacing_seconds, self.MAX_SPACING_SECONDS)

    def rejected(self, rejection: Rejection) -> float:
        """Reports a 429; returns the duration of the hold, in seconds."""
        hold_seconds = self.governor.rejected(self._clock(), rejection)
        if hold_seconds == 0 and self._timer is not None:
            # `LearnedRate` may test the 429 with requests that are sent at once.
            self._timer.cancel()
            self._release_admitted()
        return hold_seconds

    def release_all(self) -> None:
        """Releases all waiting requests, admitted or not: nothing is sent now."""
        for waiter in (*self._retries, *self._fresh):
            if not waiter.turn.done():
                waiter.turn.set_result(waiter.reserve())
        self._retries.clear()
        self._fresh.clear()

    def _release_admitted(self) -> None:
        """Releases the requests that are admitted now, and schedules the next release."""
        now, self._timer = self._clock(), None
        if self._blocked_since is not None:
            self.waited_seconds += now - self._blocked_since
            self._blocked_since = None
        while queue := self._retries or self._fresh:
            if not queue[0].turn.done():
                tokens = queue[0].reserve()
                if (wait := self._wait(now, tokens)) > 0:
                    self._timer = asyncio.get_running_loop().call_later(wait, self._release_admitted)
                    return
                queue[0].turn.set_result(tokens)
            queue.popleft()

    def _wait(self, now: float, tokens: float) -> float:
        """Admits one request and returns 0, or returns the seconds after which to try again."""
        line = max(self._line, now - self.SPACING_CREDIT_SECONDS)
        if line > now:
            return line - now
        if (wait := self.governor.admit(now, tokens, self.backlog)) > 0:
            self._blocked_since = now
            return min(wait, self.LONGEST_WAIT_SECONDS)
        self._line = line + self._spacing_seconds
        return 0.0


class Slots:
    """Slots for requests in flight; their number may change at any time.

    Args:
        limit: Returns the number of slots; called for each request.
    """

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._taken = 0
        self._queue: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> None:
        """Waits for a free slot and takes it."""
        while self._taken >= self._limit():
            turn = asyncio.get_running_loop().create_future()
            self._queue.append(turn)
            await turn
        self._taken += 1

    async def __aexit__(self, *_: object) -> None:
        """Releases the slot."""
        self._taken -= 1
        self.wake()

    def wake(self) -> None:
        """Gives the free slots to those who wait: to be called when the limit has risen."""
        if not self._queue:
            return
        free = self._limit() - self._taken
        while free > 0 and self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                free -= 1
