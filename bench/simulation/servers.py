"""Servers with a quota of one shape each, of requests, of tokens, or of both."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from airflow_provider_llmbeam.transport.server_reply import QuotaUnit


@dataclass(frozen=True, slots=True)
class Rejection:
    """A 429.

    Attributes:
        retry_delay_seconds: Advice of the server, or `None`.
        unit: What the quota counts that is used up, if the server names it.
    """

    retry_delay_seconds: float | None
    unit: QuotaUnit | None = None


class Quota(Protocol):
    """Decides whether a request is admitted. An amount is 1 for a quota of requests, else the tokens."""

    def wait_seconds(self, now: float, amount: float = 1.0) -> float:
        """Returns the time until an amount is admitted, 0 if it is admitted now, without counting it."""
        ...

    def take(self, now: float, amount: float = 1.0) -> None:
        """Counts an amount that is admitted, or that an admitted request has used beyond the quota."""

    def free_requests(self) -> float:
        """Returns the amount that is admitted at once at the beginning."""
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

    def wait_seconds(self, now: float, amount: float = 1.0) -> float:
        """See `Quota`."""
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rps)
        self._at = now
        amount = min(amount, self._burst)
        return max(0.0, (amount - self._tokens) / self._rps) if self._tokens < amount - 1e-9 else 0.0

    def take(self, now: float, amount: float = 1.0) -> None:
        """See `Quota`."""
        self._tokens -= amount

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
        used_amount = round(used * self._most)
        others = min(40_000, used_amount)
        self._log = deque(
            (-seconds * (others - number) / (others + 1), used_amount / others) for number in range(others)
        )
        self._used = float(used_amount)

    def wait_seconds(self, now: float, amount: float = 1.0) -> float:
        """See `Quota`."""
        while self._log and self._log[0][0] <= now - self._seconds:
            self._used -= self._log.popleft()[1]
        excess = self._used + min(amount, self._most) - self._most
        wait = 0.0
        for at, taken in self._log:
            if excess <= 1e-6:
                break
            excess -= taken
            wait = at + self._seconds - now
        return wait

    def take(self, now: float, amount: float = 1.0) -> None:
        """See `Quota`."""
        self._log.append((now, amount))
        self._used += amount

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
        self._window, self._used = 0, float(round(used * self._most))

    def wait_seconds(self, now: float, amount: float = 1.0) -> float:
        """See `Quota`."""
        window = math.floor(now / self._seconds + self._phase)
        if window != self._window:
            self._window, self._used = window, 0.0
        if self._used + min(amount, self._most) <= self._most:
            return 0.0
        return (window + 1 - self._phase) * self._seconds - now

    def take(self, now: float, amount: float = 1.0) -> None:
        """See `Quota`."""
        self._used += amount

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

    def wait_seconds(self, now: float, amount: float = 1.0) -> float:
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

    def take(self, now: float, amount: float = 1.0) -> None:
        """See `Quota`."""

    def free_requests(self) -> float:
        """See `Quota`."""
        return 0.0


class Unlimited:
    """No limit."""

    def wait_seconds(self, now: float, amount: float = 1.0) -> float:
        """See `Quota`."""
        return 0.0

    def take(self, now: float, amount: float = 1.0) -> None:
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
    """A server with a quota of requests, of tokens, or of both.

    Input tokens are counted on admission, output tokens with the answer, as nobody knows them before.

    Args:
        quotas: The quotas by what they count.
        advice: Turns the time until a request is admitted into what a 429 says.
        names_unit: Whether a 429 says what the quota counts that is used up.
    """

    def __init__(self, quotas: Mapping[QuotaUnit, Quota], advice: Advice, *, names_unit: bool = False) -> None:
        self._quotas, self._advice, self._names_unit = quotas, advice, names_unit

    def admit(self, now: float, tokens: int) -> Rejection | None:
        """Counts a request, or refuses it."""
        amounts: dict[QuotaUnit, float] = {"requests": 1.0, "tokens": float(tokens)}
        waits = {unit: quota.wait_seconds(now, amounts[unit]) for unit, quota in self._quotas.items()}
        unit = max(waits, key=lambda each: waits[each])
        if waits[unit] > 0:
            return Rejection(self._advice(waits[unit]), unit if self._names_unit else None)
        for each, quota in self._quotas.items():
            quota.take(now, amounts[each])
        return None

    def charge_output(self, now: float, tokens: int) -> None:
        """Counts the tokens of an answer."""
        if "tokens" in self._quotas:
            self._quotas["tokens"].take(now, float(tokens))
