"""What happens later by the sandbox's clock; done, in order, when somebody next looks."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable

from airflow_provider_llmbeam.sandbox.core.clock import Clock


class Timeline:
    """Things due at a time.

    There is no thread behind it: whoever reads or changes what depends on the time takes `lock` and calls
    `settle` first, so that a clock that a test moves is enough to make hours pass.

    Args:
        clock: Seconds since the epoch.
    """

    def __init__(self, clock: Clock) -> None:
        self.lock = threading.RLock()
        self._clock = clock
        self._serial = itertools.count()
        self._due: list[tuple[float, int, Callable[[float], None]]] = []

    def now(self) -> float:
        """Return the time, in seconds since the epoch."""
        return self._clock()

    def at(self, when: float, happen: Callable[[float], None]) -> None:
        """Have `happen` called with `when`, in seconds since the epoch, once that time has come."""
        with self.lock:
            heapq.heappush(self._due, (when, next(self._serial), happen))

    def settle(self) -> float:
        """Do all that is due; returns the time up to which it has been done."""
        with self.lock:
            now = self._clock()
            while self._due and self._due[0][0] <= now:
                when, _, happen = heapq.heappop(self._due)
                happen(when)
            return now

    def clear(self) -> None:
        """Forget what is due."""
        with self.lock:
            self._due.clear()
