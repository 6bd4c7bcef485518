"""Polling on a schedule: until a condition is met, the timeout passes, or the condition can no longer be met.

`ConsecutiveFailures` says when failed polls are enough to give up. Pure; `now` is an argument.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, Protocol, Self

from airflow_provider_llmbeam.exceptions import JobSpecError, LLMBeamError
from airflow_provider_llmbeam.polling.poller import PollResult, TaskLog, Wait

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorResult(PollResult):
    """End of a sensor's wait.

    Attributes:
        outcome: `met`: the condition is met; `timed_out`: not within the timeout; `refused`: it can no longer be
            met, however long the sensor waits.
        polls: Number of polls.
        waited_seconds: Time from the first poll to the last one.
        value: What the condition has returned; `None` if it is not met.
    """

    default_error: ClassVar[type[LLMBeamError]] = JobSpecError

    outcome: Literal["met", "timed_out", "refused"]
    polls: int
    waited_seconds: float
    value: dict[str, Any] | None = None


class Condition(Protocol):
    """Something that a sensor waits for."""

    def check(self, log: TaskLog) -> Wait | dict[str, Any]:
        """Checks once, and blocks the calling thread.

        Args:
            log: Receives what a person may want to know besides the message of the `Wait`.

        Returns:
            A `Wait` if the condition is not met yet: its message goes to the log and to that of the result, and
            its seconds are the least until the next check. If it is met, its value as plain JSON.

        Raises:
            LLMBeamError: Counts as a `Wait` if a retry may help; otherwise the condition can no longer be met.
        """


class ScheduledPoller:
    """Checks a condition on a schedule and until a timeout. Blocks the calling thread.

    Args:
        condition: The condition.
        schedule: Interval and timeout.
        log: Receives the messages.
        now: Seconds of the Unix epoch.
    """

    def __init__(
        self,
        condition: Condition,
        schedule: PollSchedule,
        *,
        log: TaskLog,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._condition = condition
        self._schedule = schedule
        self._log = log
        self._now = now
        self._polls = schedule.polls

    @property
    def polls(self) -> int:
        """Number of polls, including those before the schedule was passed on."""
        return self._polls

    def poll(self) -> Wait | SensorResult:
        """Polls once."""
        self._polls += 1
        try:
            result = self._condition.check(self._log)
        except LLMBeamError as error:
            if not error.retryable:
                return self._result("refused", str(error), error_type=type(error).__name__)
            result = Wait(0.0, str(error))
        if not isinstance(result, Wait):
            return self._result("met", value=result)
        if result.message:
            self._log.log(logging.INFO, "%s", result.message)
        now = self._now()
        remaining = self._schedule.remaining_seconds(now)
        if remaining <= 0:
            times = "once" if self._polls == 1 else f"{self._polls} times"
            message = f"Polled {times} within {self._schedule.timeout_seconds:g} s (`timeout`)."
            return self._result("timed_out", f"{message} {result.message or ''}".strip())
        seconds = max(result.seconds, self._schedule.wait_seconds(self._polls, now))
        return Wait(min(seconds, remaining), result.message)

    def _result(
        self,
        outcome: Literal["met", "timed_out", "refused"],
        message: str = "",
        *,
        value: dict[str, Any] | None = None,
        error_type: str | None = None,
    ) -> SensorResult:
        return SensorResult(
            outcome=outcome,
            message=message,
            polls=self._polls,
            waited_seconds=round(max(0.0, self._now() - self._schedule.started_at), 3),
            value=value,
            error_type=error_type,
        )


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
