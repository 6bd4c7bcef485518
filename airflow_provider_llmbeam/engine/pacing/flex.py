"""The flex tier: whether a request is sent there, and when it is repeated. Pure.

A flex request costs half of a standard one, is answered within minutes, and is shed where the provider has no
capacity for it (503 or 429). That says nothing about a quota, so it does not reach the governor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from airflow_provider_llmbeam.engine.retry import FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS, RequestError

#: Number of times that a row is shed before it is sent at the standard tier: 0.8 % of the rows, if 30 % are shed
#: at random.
MAX_SHEDS = 4
#: Number of requests shed one after the other, after which flex may have no capacity at all.
SHEDS_IN_A_ROW = 20
#: Time after which a request that is neither shed nor answered was taken, in seconds: flex sheds at once, and
#: answers after minutes. With 30 % shed and answers after a minute, 20 are shed before the first answer.
TAKEN_SECONDS = 10.0
#: Time between two requests that look for new capacity, in seconds.
PROBE_SECONDS = 30.0


def is_shed(error: RequestError) -> bool:
    """Returns whether a flex request was shed; a quota per day is none that returns with the capacity."""
    return error.kind == "throttled" or error.http_status == 503


@dataclass(slots=True)
class FlexCapacity:
    """Decides about the tier of each request. Times are Unix seconds.

    Attributes:
        has_fallback: Whether a row may be sent at the standard tier.
        until: Time from which on only the standard tier answers early enough.
        max_shed_seconds: Maximum time in which a row without a fallback is only shed, in seconds.
    """

    has_fallback: bool
    until: float = math.inf
    max_shed_seconds: float = math.inf
    _sheds_in_a_row: int = 0
    _shed_since: float = 0.0
    _next_probe_at: float = 0.0
    #: Times of the requests in flight by their number, the oldest first.
    _in_flight: dict[int, float] = field(default_factory=dict)

    def takes(self, sheds: int, now: float) -> bool:
        """Decides whether a request is sent at the flex tier.

        Args:
            sheds: Number of times that its row was shed.
            now: The time.
        """
        if not self.has_fallback:
            return True
        if now >= self.until or sheds >= MAX_SHEDS:
            return False
        if not self.is_exhausted(now):
            return True
        if now < self._next_probe_at:
            return False
        self._next_probe_at = now + PROBE_SECONDS
        return True

    def sent(self, number: int, now: float) -> None:
        """A request was sent; `number` names it until it has ended."""
        self._in_flight[number] = now

    def ended(self, number: int) -> None:
        """A request has ended in any way."""
        self._in_flight.pop(number, None)

    def answered(self) -> None:
        """There is capacity."""
        self._sheds_in_a_row = 0

    def shed(self, now: float) -> None:
        """A request was shed."""
        if not self._sheds_in_a_row:
            self._shed_since = now
        self._sheds_in_a_row += 1

    def is_exhausted(self, now: float) -> bool:
        """Returns whether there is no capacity: many were shed for some time, and none has been taken."""
        if self._sheds_in_a_row < SHEDS_IN_A_ROW or now - self._shed_since < TAKEN_SECONDS:
            return False
        return now - next(iter(self._in_flight.values()), now) < TAKEN_SECONDS

    def wait_seconds(
        self, sheds: int, now: float, shed_seconds: float, advised_seconds: float, chance: float
    ) -> float | None:
        """Decides when a row that was shed is sent again.

        Args:
            sheds: Number of times that the row was shed.
            now: The time.
            shed_seconds: Time since the first of them, in seconds.
            advised_seconds: Delay that the server asks for, in seconds; 0 if it asks for none.
            chance: Random number, uniform in [0, 1), for full jitter.

        Returns:
            Delay in seconds, 0 for a row that is sent at the standard tier next, or `None` for no retry.
        """
        if self.has_fallback and (sheds >= MAX_SHEDS or self.is_exhausted(now)):
            return 0.0
        if not self.has_fallback and shed_seconds >= self.max_shed_seconds:
            return None
        backoff_seconds = min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** min(sheds, 10))
        return max(chance * backoff_seconds, advised_seconds)
