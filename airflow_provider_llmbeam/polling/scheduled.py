"""Polling on a schedule, for sensors: until a condition is met, the timeout passes, or polling is refused."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from airflow_provider_llmbeam.exceptions import JobSpecError, LLMBeamError
from airflow_provider_llmbeam.polling.poller import Poller, Wait
from airflow_provider_llmbeam.polling.result import PollResult, TaskResult
from airflow_provider_llmbeam.polling.schedule import PollSchedule
from airflow_provider_llmbeam.polling.task_log import TaskLog


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorResult(TaskResult):
    """End of a sensor's wait.

    Attributes:
        outcome: `met`: the condition is met; `timed_out`: not within the timeout; `refused`: it can no longer be
            met, however long the sensor waits.
        polls: Number of polls.
        waited_seconds: Time from the first poll to the last one.
        event: `PollResult.to_event` of the poller's result; `None` if the condition is not met.
    """

    default_error: ClassVar[type[LLMBeamError]] = JobSpecError

    outcome: Literal["met", "timed_out", "refused"]
    polls: int
    waited_seconds: float
    event: dict[str, Any] | None = None


class ScheduledPoller:
    """Polls through another poller, on a schedule and until a timeout. Blocks the calling thread.

    A `Wait` of the other poller means that the condition is not met yet: its message goes to the log and to the
    message of the result, and its seconds are the least until the next poll. A result means that the condition is
    met. An `LLMBeamError` counts as a `Wait` if a retry may help, and ends the wait otherwise.

    Args:
        poller: Checks the condition.
        schedule: Interval and timeout.
        log: Receives the messages.
        now: Seconds of the Unix epoch.
    """

    def __init__(
        self,
        poller: Poller[PollResult],
        schedule: PollSchedule,
        *,
        log: TaskLog,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._poller = poller
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
            result = self._poller.poll()
        except LLMBeamError as error:
            if not error.retryable:
                return self._result("refused", str(error), error_type=type(error).__name__)
            result = Wait(0.0, str(error))
        if not isinstance(result, Wait):
            return self._result("met", event=result.to_event())
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
        event: dict[str, Any] | None = None,
        error_type: str | None = None,
    ) -> SensorResult:
        return SensorResult(
            outcome=outcome,
            message=message,
            polls=self._polls,
            waited_seconds=round(max(0.0, self._now() - self._schedule.started_at), 3),
            event=event,
            error_type=error_type,
        )
