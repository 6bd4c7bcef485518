"""The clock that the sandbox reads, the actions that are due by it, and timestamps."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

Clock = Callable[[], float]
"""Returns seconds since the epoch; `time.time` unless a test passes its own."""


class ManualClock:
    """A clock that stands still until a test moves it, so that quotas refill without sleeping.

    Args:
        start_seconds: First reading, in seconds since the epoch.
    """

    def __init__(self, start_seconds: float = 1_700_000_000.0) -> None:
        self._now = start_seconds

    def __call__(self) -> float:
        """Returns the current reading, in seconds since the epoch."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Moves the clock forward.

        Args:
            seconds: Time to add, in seconds, >= 0.

        Raises:
            ValueError: `seconds` is negative.
        """
        if seconds < 0:
            raise ValueError(f"`seconds` must be >= 0, as a clock never runs backwards; got {seconds!r}.")
        self._now += seconds


class Timeline:
    """Actions scheduled by the sandbox's clock.

    No thread runs them: code that reads or changes time-dependent state does so in `with timeline.settled()`,
    so that moving a clock by hand is enough to make hours pass.

    Args:
        clock: Returns seconds since the epoch.
    """

    def __init__(self, clock: Clock) -> None:
        self.lock = threading.RLock()
        self._clock = clock
        self._serial = itertools.count()
        self._due: list[tuple[float, int, Callable[[float], None]]] = []

    def now(self) -> float:
        """Returns the time, in seconds since the epoch."""
        return self._clock()

    def at(self, when: float, action: Callable[[float], None]) -> None:
        """Schedules `action(when)` for a time in seconds since the epoch."""
        with self.lock:
            heapq.heappush(self._due, (when, next(self._serial), action))

    @contextmanager
    def settled(self) -> Iterator[float]:
        """Runs all due actions, in order, and holds the lock; yields the time up to which they were run."""
        with self.lock:
            now = self._clock()
            while self._due and self._due[0][0] <= now:
                when, _, action = heapq.heappop(self._due)
                action(when)
            yield now

    def clear(self) -> None:
        """Removes all scheduled actions."""
        with self.lock:
            self._due.clear()


def timestamp(seconds: float) -> str:
    """Returns a time as most Google APIs write it: in UTC, with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
