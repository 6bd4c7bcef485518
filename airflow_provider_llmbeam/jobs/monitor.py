"""Monitors a job on Dataflow or Flink, one poll after the other."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from airflow_provider_llmbeam.exceptions import CloudError, CloudUnavailableError
from airflow_provider_llmbeam.hooks.google.dataflow_job import JobAddress
from airflow_provider_llmbeam.jobs.cancellation import Cancellable, Storage, stop_and_cancel
from airflow_provider_llmbeam.jobs.job import Address, Job
from airflow_provider_llmbeam.jobs.outcome import JobResult, job_result
from airflow_provider_llmbeam.jobs.progress_log import ProgressLog
from airflow_provider_llmbeam.jobs.state_machine import (
    CANCELLING_SECONDS,
    Follow,
    JobDecision,
    JobEnded,
    JobStateMachine,
    OverBudget,
)
from airflow_provider_llmbeam.polling.poller import Wait
from airflow_provider_llmbeam.polling.task_log import TaskLog
from airflow_provider_llmbeam.spec.protocol.counts import Counts, usd

#: Wait before the first poll of a job that replaced another, in seconds.
FOLLOWING_SECONDS = 1.0


class JobClient(Cancellable, Protocol):
    """The methods of a client of Dataflow or Flink that monitoring uses."""

    def counts(self, job_id: str, *, running: bool) -> Counts:
        """Returns its counters."""

    def error_messages(self, job_id: str) -> Sequence[str]:
        """Returns its error messages."""


class JobMonitor:
    """Polls one job and carries out the decisions of a state machine. Blocks the calling thread.

    Args:
        connect: Makes the client, which reads the Airflow connection; called at the first poll.
        address: Address of the job.
        poller: Decides after each poll.
        journal_uri: Directory of the answers so far, for messages.
        stop_uri: File whose existence ends the job.
        connect_storage: Makes the client that writes it.
        log: Receives changes of the state, progress and warnings.
        now: Seconds of the Unix epoch.
    """

    def __init__(
        self,
        connect: Callable[[], JobClient],
        address: Address,
        *,
        poller: JobStateMachine,
        journal_uri: str,
        stop_uri: str,
        connect_storage: Callable[[], Storage],
        log: TaskLog,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.address = address
        self._connect = connect
        self._client: JobClient | None = None
        self._poller = poller
        self._journal_uri = journal_uri
        self._stop_uri = stop_uri
        self._connect_storage = connect_storage
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
                assert isinstance(self.address, JobAddress), "only Dataflow replaces jobs"
                self.address = replace(self.address, job_id=job_id)
                return Wait(FOLLOWING_SECONDS)
            case OverBudget(cost_usd):
                return self._cancel(cost_usd)
            case JobEnded() as end:
                messages = self._error_messages() if self._has_failed else ()
                return job_result(end, self.address, self._state, messages, self._journal_uri)

    def cancel(self) -> None:
        """Requests the cancellation of the job.

        Raises:
            CloudError: The request was refused or not answered.
        """
        self._service_client().cancel(self.address.job_id)

    def _decide(self) -> JobDecision:
        try:
            job = self._service_client().get(self.address.job_id)
            self._log_state(job)
            cost_usd = self._count(job)
        except CloudError as error:
            return self._poller.on_error(error, self._now())
        except Exception as error:  # noqa: BLE001 - a healthy job would be cancelled if its trigger failed
            unknown = CloudUnavailableError(f"Polling failed with {type(error).__name__}: {error}.")
            return self._poller.on_error(unknown, self._now())
        return self._poller.on_job(job, cost_usd, self._now())

    def _service_client(self) -> JobClient:
        if self._client is None:
            self._client = self._connect()
        return self._client

    def _log_state(self, job: Job) -> None:
        if job.state != self._state:
            self._log_event(logging.INFO, f"is in state {job.state}.")
            self._state = job.state
        self._has_failed = job.phase == "failed"

    def _count(self, job: Job) -> float | None:
        """Logs the progress and returns the cost so far."""
        try:
            counts = self._service_client().counts(job.job_id, running=not job.is_over)
        except CloudError as error:
            # With a budget the poll fails if the cost cannot be read, unless the job has ended.
            if self._poller.has_budget and not job.is_over:
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
            stop_and_cancel(
                self.address.job_id, self._stop_uri, self._service_client(), self._connect_storage, self._log
            )
        except CloudError as error:
            self._log.log(logging.WARNING, "%s Requesting it again in %.0f s.", error, CANCELLING_SECONDS)
        return Wait(CANCELLING_SECONDS)

    def _error_messages(self) -> Sequence[str]:
        try:
            return self._service_client().error_messages(self.address.job_id)
        except CloudError as error:
            return (f"The error messages could not be read: {error}",)

    def _log_event(self, level: int, message: str) -> None:
        self._log.log(level, "%s job %r %s", self.address.service, self.address.job_id, message)
