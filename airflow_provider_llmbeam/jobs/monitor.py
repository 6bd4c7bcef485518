"""Monitors a job on Dataflow or Flink, one poll after the other."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from airflow_provider_llmbeam.exceptions import CloudError, CloudUnavailableError
from airflow_provider_llmbeam.jobs.cancellation import stop_and_cancel
from airflow_provider_llmbeam.jobs.client import JobClient, SubmittedJob
from airflow_provider_llmbeam.jobs.outcome import JobResult, job_result
from airflow_provider_llmbeam.jobs.state_machine import (
    CANCELLING_SECONDS,
    Follow,
    JobDecision,
    JobEnded,
    JobStateMachine,
    OverBudget,
)
from airflow_provider_llmbeam.polling.poller import TaskLog, Wait
from airflow_provider_llmbeam.spec.protocol.counts import Counts, progress_line, usd
from airflow_provider_llmbeam.spec.remote_job import RemoteJob

#: Wait before the first poll of a job that replaced another, in seconds.
FOLLOWING_SECONDS = 1.0
#: Number of polls over which the rate of progress is measured.
WINDOW = 10


class ProgressLog:
    """Writes a line on each change, and none while nothing changes.

    Args:
        log: Log that receives the lines.
    """

    def __init__(self, log: TaskLog) -> None:
        self._log = log
        self._shown = Counts()
        self._history: deque[tuple[float, int]] = deque(maxlen=WINDOW)

    def show(self, counts: Counts, now: float) -> None:
        """Writes the progress of the job if it has changed; `now` is in seconds."""
        self._history.append((now, counts.done))
        if counts != self._shown:
            self._log.log(logging.INFO, "%s", progress_line(counts, self._rows_per_second()))
            self._shown = counts

    def _rows_per_second(self) -> float:
        (first_at, first_done), (last_at, last_done) = self._history[0], self._history[-1]
        # Counts may decrease temporarily when Dataflow repeats work.
        return max(0.0, (last_done - first_done) / (last_at - first_at)) if last_at > first_at else 0.0


class JobMonitor:
    """Polls one job and carries out the decisions of a state machine. Blocks the calling thread.

    Args:
        connect: Makes the client, which reads the Airflow connection; called at the first poll.
        job: The job.
        machine: Decides after each poll.
        log: Receives changes of the state, progress and warnings.
        now: Seconds of the Unix epoch.
    """

    def __init__(
        self,
        connect: Callable[[], JobClient],
        job: SubmittedJob,
        *,
        machine: JobStateMachine,
        log: TaskLog,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.job = job
        self._connect = connect
        self._client: JobClient | None = None
        self._machine = machine
        self._log = log
        self._now = now
        self._progress = ProgressLog(log)
        self._state = ""
        self._has_failed = False
        self._metrics_failed = False

    def poll(self) -> Wait | JobResult:
        """Polls once, and carries out what follows.

        Returns:
            The wait until the next poll, or the result.
        """
        match self._decide():
            case Wait() as wait:
                if wait.message:
                    self._log.log(logging.WARNING, "%s", wait.message)
                return wait
            case Follow(job_id):
                self._log_event(logging.WARNING, f"was replaced by job {job_id!r}, which is monitored now.")
                self.job = replace(self.job, id=job_id)
                return Wait(FOLLOWING_SECONDS)
            case OverBudget(cost_usd):
                return self._cancel(cost_usd)
            case JobEnded() as end:
                messages = self._error_messages() if self._has_failed else ()
                return job_result(end, self.job, self._state, messages)

    def client(self) -> JobClient:
        """Returns the client; it connects if nothing was polled yet.

        Raises:
            CloudError: The connection cannot be used.
        """
        if self._client is None:
            self._client = self._connect()
        return self._client

    def _decide(self) -> JobDecision:
        try:
            job = self.client().get(self.job.id)
            self._log_state(job)
            cost_usd = self._count(job)
        except CloudError as error:
            return self._machine.on_error(error, self._now())
        except Exception as error:  # noqa: BLE001 - a healthy job would be cancelled if its trigger failed
            unknown = CloudUnavailableError(f"Polling failed with {type(error).__name__}: {error}.")
            return self._machine.on_error(unknown, self._now())
        return self._machine.on_job(job, cost_usd, self._now())

    def _log_state(self, job: RemoteJob) -> None:
        if job.state != self._state:
            self._log_event(logging.INFO, f"is in state {job.state}.")
            self._state = job.state
        self._has_failed = job.phase == "failed"

    def _count(self, job: RemoteJob) -> float | None:
        """Logs the progress and returns the cost so far."""
        try:
            counts = self.client().counts(job.job_id, running=not job.is_over)
        except CloudError as error:
            # With a budget the poll fails if the cost cannot be read, unless the job has ended.
            if self._machine.has_budget and not job.is_over:
                raise
            if not self._metrics_failed:
                self._log.log(logging.WARNING, "The progress is unknown: %s", error)
            self._metrics_failed = True
            return None
        self._metrics_failed = False
        self._progress.show(counts, self._now())
        return counts.cost_usd

    def _cancel(self, cost_usd: float) -> Wait:
        self._log_event(
            logging.WARNING, f"cost {usd(cost_usd)} so far, more than `limits.budget_usd`: cancelling it."
        )
        try:
            stop_and_cancel(self.job.id, self.job.stop_uri, self.client(), self._log)
        except CloudError as error:
            self._log.log(logging.WARNING, "%s Requesting it again in %.0f s.", error, CANCELLING_SECONDS)
        return Wait(CANCELLING_SECONDS)

    def _error_messages(self) -> Sequence[str]:
        try:
            return self.client().error_messages(self.job.id)
        except CloudError as error:
            return (f"The error messages could not be read: {error}",)

    def _log_event(self, level: int, message: str) -> None:
        self._log.log(level, "%s job %r %s", self.job.service, self.job.id, message)
