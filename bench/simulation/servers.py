"""Servers with a quota of one shape each."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Rejection:
    """A 429.

    Attributes:
        retry_delay_seconds: Advice of the server, or `None`.
    """

    retry_delay_seconds: float | None


class Quota(Protocol):
    """Decides whether a request is admitted."""

    def wait_seconds(self, now: float) -> float:
        """Returns the time until a request is admitted, 0 if it is admitted now, without counting it."""
        ...

    def take(self, now: float) -> None:
        """Counts a request that is admitted."""

    def free_requests(self) -> float:
        """Returns the requests that are admitted at once at the beginning."""
        ...


class Bucket:
    """A bucket that is filled continuously, as of GCRA.

    Args:
        rps: Requests per second.
        burst: Requests that the full bucket holds.
        used: Share of the bucket that is used up at the beginning.
    """

    def __init__(self, rps: float, burst: float, used: float = 0.0) -> None:
        self._rps, self._burst = rps, max(1.0, burst)
        self._tokens, self._at = self._burst * (1.0 - used), 0.0
        self._free = self._tokens

    def wait_seconds(self, now: float) -> float:
        """See `Quota`."""
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rps)
        self._at = now
        return max(0.0, (1.0 - self._tokens) / self._rps) if self._tokens < 1.0 - 1e-9 else 0.0

    def take(self, now: float) -> None:
        """See `Quota`."""
        self._tokens -= 1.0

    def free_requests(self) -> float:
        """See `Quota`."""
        return self._free


class SlidingLog:
    """At most so many requests in any period.

    Args:
        rps: Requests per second in the long run.
        seconds: The period.
        used: Share of the first period that is used up at the beginning.
    """

    def __init__(self, rps: float, seconds: float, used: float = 0.0) -> None:
        self._most, self._seconds = max(1, round(rps * seconds)), seconds
        others = round(used * self._most)
        self._log = deque(-seconds * (others - number) / (others + 1) for number in range(others))

    def wait_seconds(self, now: float) -> float:
        """See `Quota`."""
        while self._log and self._log[0] <= now - self._seconds:
            self._log.popleft()
        return 0.0 if len(self._log) < self._most else self._log[0] + self._seconds - now

    def take(self, now: float) -> None:
        """See `Quota`."""
        self._log.append(now)

    def free_requests(self) -> float:
        """See `Quota`."""
        return 0.0


class FixedWindow:
    """At most so many requests in each window.

    Args:
        rps: Requests per second in the long run.
        seconds: Length of a window.
        phase: Share of the first window that is over at the beginning.
        used: Share of it that is used up.
    """

    def __init__(self, rps: float, seconds: float, phase: float, used: float = 0.0) -> None:
        self._most, self._seconds, self._phase = max(1, round(rps * seconds)), seconds, phase
        self._window, self._used = 0, round(used * self._most)

    def wait_seconds(self, now: float) -> float:
        """See `Quota`."""
        window = math.floor(now / self._seconds + self._phase)
        if window != self._window:
            self._window, self._used = window, 0
        return 0.0 if self._used < self._most else (window + 1 - self._phase) * self._seconds - now

    def take(self, now: float) -> None:
        """See `Quota`."""
        self._used += 1

    def free_requests(self) -> float:
        """See `Quota`."""
        return 0.0


class Pool:
    """A pool that others use as well: its capacity wanders, and what exceeds it is refused by chance.

    Args:
        rps: Mean capacity in requests per second.
        rng: Random numbers.
    """

    STEP_SECONDS, STEP, LEAST, MOST = 5.0, 0.12, 0.5, 1.5
    #: Share of requests that is refused although there is capacity.
    BASE = 0.003

    def __init__(self, rps: float, rng: random.Random) -> None:
        self._rps, self._rng = rps, rng
        self._share, self._stepped_at = 1.0, 0.0
        self._offered, self._at = 0.0, 0.0
        #: Number of requests that were within the capacity so far.
        self.capacity = 0.0
        #: Times, in seconds, and the capacity from then on, in requests per second.
        self.steps = [(0.0, rps)]
        self._horizon = max(1.0, 10.0 / rps)

    def wait_seconds(self, now: float) -> float:
        """See `Quota`."""
        while now - self._stepped_at >= self.STEP_SECONDS:
            self._stepped_at += self.STEP_SECONDS
            self.capacity += self.STEP_SECONDS * self._rps * self._share
            wanted = self._share * math.exp(self._rng.gauss(0.0, self.STEP))
            self._share = min(self.MOST, max(self.LEAST, wanted))
            self.steps.append((self._stepped_at, self._rps * self._share))
        self._offered = self._offered * math.exp((self._at - now) / self._horizon) + 1.0 / self._horizon
        self._at = now
        excess = max(0.0, 1.0 - self._rps * self._share / self._offered)
        return 1.0 if self._rng.random() < self.BASE + excess else 0.0

    def take(self, now: float) -> None:
        """See `Quota`."""

    def free_requests(self) -> float:
        """See `Quota`."""
        return 0.0


class Unlimited:
    """No limit."""

    def wait_seconds(self, now: float) -> float:
        """See `Quota`."""
        return 0.0

    def take(self, now: float) -> None:
        """See `Quota`."""

    def free_requests(self) -> float:
        """See `Quota`."""
        return math.inf


Advice = Callable[[float], float | None]
#: What a server says about the time until the next request is admitted.
ADVICE: dict[str, Advice] = {
    "exact": lambda seconds: seconds,
    "whole seconds": lambda seconds: float(math.ceil(seconds)),
    "none": lambda seconds: None,
    "constant": lambda seconds: 2.0,
}


class QuotaServer:
    """A server with a quota.

    Args:
        quota: The quota.
        advice: Turns the time until a request is admitted into what a 429 says.
    """

    def __init__(self, quota: Quota, advice: Advice) -> None:
        self._quota, self._advice = quota, advice

    def admit(self, now: float, tokens: int) -> Rejection | None:
        """Counts a request, or refuses it."""
        wait = self._quota.wait_seconds(now)
        if wait > 0:
            return Rejection(self._advice(wait))
        self._quota.take(now)
        return None

    def charge_output(self, now: float, tokens: int) -> None:
        """Ignores the tokens of an answer."""
