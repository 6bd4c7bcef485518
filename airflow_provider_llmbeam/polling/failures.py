"""Consecutive failed polls: how many, since when, and of which kind. Pure; `now` is an argument."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from airflow_provider_llmbeam.polling.schedule import backoff_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsecutiveFailures:
    """Failed polls since the last successful one. A successful poll starts again with `ConsecutiveFailures()`.

    Attributes:
        count: Number of failed polls.
        since: Time of the first of them, in seconds of the Unix epoch; `None` if there is none.
        kind: Class name of the last error; empty if there is none.
        kind_count: Number of failed polls at the end of the row whose error is of that class.
    """

    count: int = 0
    since: float | None = None
    kind: str = ""
    kind_count: int = 0

    def add(self, error: Exception, now: float) -> Self:
        """Returns the failures including one more.

        Args:
            error: Error that the poll raised.
            now: Time of the poll, in seconds of the Unix epoch.
        """
        kind = type(error).__name__
        return type(self)(
            count=self.count + 1,
            since=now if self.since is None else self.since,
            kind=kind,
            kind_count=self.kind_count + 1 if kind == self.kind else 1,
        )

    def seconds(self, now: float) -> float:
        """Time since the first failure, in seconds; 0 if there is none."""
        return 0.0 if self.since is None else now - self.since

    def exceeds(self, max_count: int, max_seconds: float, now: float) -> bool:
        """Whether both limits are reached: ten quick failures, or one slow failure, are not enough to give up.

        Args:
            max_count: Number of failed polls.
            max_seconds: Time since the first of them.
            now: Seconds of the Unix epoch.
        """
        return self.count >= max_count and self.seconds(now) >= max_seconds

    def wait_seconds(self, poll_interval_seconds: float, max_wait_seconds: float) -> float:
        """Wait until the next poll, in seconds: doubles with each failure.

        Args:
            poll_interval_seconds: Shortest wait, used after the first failure.
            max_wait_seconds: Longest wait, unless `poll_interval_seconds` is longer.
        """
        longest = max(poll_interval_seconds, max_wait_seconds)
        return min(backoff_seconds(self.count, poll_interval_seconds), longest)
