"""When to poll next, and when to stop polling. Pure; `now` is an argument."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

#: Delay of the first poll after a deferral: Airflow 3.3 with LocalExecutor loses tasks that resume within
#: about 5 s.
FIRST_POLL_DELAY_SECONDS = 10.0
#: Shortest interval between two polls, even if a shorter one is requested: a poll may cost money.
MIN_POLL_INTERVAL_SECONDS = 1.0
#: A larger power of two may exceed the range of a float.
_MAX_DOUBLINGS = 30


def backoff_seconds(poll: int, interval_seconds: float) -> float:
    """Wait after a poll, in seconds, if each wait is twice as long as the one before.

    Args:
        poll: Number of the poll; the first is 1.
        interval_seconds: Wait after the first poll.
    """
    doublings: int = min(max(poll - 1, 0), _MAX_DOUBLINGS)
    return interval_seconds * 2.0**doublings


@dataclass(frozen=True, slots=True, kw_only=True)
class PollSchedule:
    """Interval and end of polling; plain JSON, so that it can be an argument of a trigger.

    Attributes:
        started_at: Time of the first poll, in seconds of the Unix epoch.
        timeout_seconds: Time from `started_at` to the last poll; `None` if the caller enforces a timeout itself.
        poll_interval_seconds: Interval between two polls, in seconds.
        is_exponential: Whether each interval is twice as long as the one before.
        max_wait_seconds: Longest interval, in seconds.
        polls: Number of polls before this schedule was passed on, e.g. by the worker to the triggerer.
    """

    started_at: float
    timeout_seconds: float | None
    poll_interval_seconds: float = 60.0
    is_exponential: bool = False
    max_wait_seconds: float | None = None
    polls: int = 0

    def remaining_seconds(self, now: float) -> float:
        """Time until the timeout, in seconds; `now` is in seconds of the Unix epoch."""
        return float("inf") if self.timeout_seconds is None else self.started_at + self.timeout_seconds - now

    def interval_seconds(self, poll: int) -> float:
        """Wait after a poll, in seconds, without regard to the timeout.

        Args:
            poll: Number of the poll; the first is 1.
        """
        interval = self.poll_interval_seconds
        seconds = backoff_seconds(poll, interval) if self.is_exponential else interval
        if self.max_wait_seconds is not None:
            seconds = min(seconds, self.max_wait_seconds)
        return max(MIN_POLL_INTERVAL_SECONDS, seconds)

    def wait_seconds(self, poll: int, now: float) -> float:
        """Wait after a poll, in seconds; the last poll is at the timeout.

        Args:
            poll: Number of the poll; the first is 1.
            now: Seconds of the Unix epoch.
        """
        return min(self.interval_seconds(poll), max(0.0, self.remaining_seconds(now)))

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as plain JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Reads what `to_dict` returned."""
        return cls(**data)
