"""What the sandbox reads the time from."""

from __future__ import annotations

from collections.abc import Callable

Clock = Callable[[], float]
"""Returns seconds since the epoch; `time.time` in production."""


class ManualClock:
    """A clock that stands still until a test moves it, so quotas refill without sleeping.

    Args:
        start_seconds: First reading, seconds since the epoch.
    """

    def __init__(self, start_seconds: float = 1_700_000_000.0) -> None:
        self._now = start_seconds

    def __call__(self) -> float:
        """Return the current reading, seconds since the epoch."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock forward.

        Args:
            seconds: How far, >= 0.

        Raises:
            ValueError: `seconds` is negative.
        """
        if seconds < 0:
            raise ValueError(f"`seconds` must be >= 0, as a clock never runs backwards; got {seconds!r}.")
        self._now += seconds
