"""Waiting for a job on Dataflow, one look after the other."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from airflow_provider_llmbeam.counts import Counts
from airflow_provider_llmbeam.dataflow.outcome import JobResult, job_result
from airflow_provider_llmbeam.dataflow.progress_log import Cost, ProgressLog
from airflow_provider_llmbeam.dataflow.state_machine import (
    CANCELLING_SECONDS,
    Follow,
    JobDecision,
    JobEnded,
    JobStateMachine,
    OverBudget,
)
from airflow_provider_llmbeam.exceptions import CloudError
from airflow_provider_llmbeam.google_cloud.dataflow_job import DataflowJob, JobAddress
from airflow_provider_llmbeam.polling.poller import Wait
from airflow_provider_llmbeam.polling.task_log import TaskLog

#: Before the first look at a job that replaced another.
FOLLOWING_SECONDS = 1.0


class Dataflow(Protocol):
    """What waiting needs of `hooks.dataflow.DataflowJobHook`."""

    def get(self, job_id: str) -> DataflowJob:
        """Looks at a job."""

    def counts(self, job_id: str, *, running: bool) -> Counts:
        """Reads its counters."""

    def error_messages(self, job_id: str) -> Sequence[str]:
        """Reads its errors."""

    def cancel(self, job_id: str) -> None:
        """Asks for its end."""


class JobMonitor:
    """Looks at one job until waiting for it is over. Blocks, in the thread that it is called from.

    Args:
        connect: Makes the client, at the first look: that reads the Airflow connection.
        address: Of the job.
        poller: Decides.
        cost_usd: Of the counts so far.
        journal_uri: Directory of the answers so far, for messages.
        log: Receives changes of the state, progress and warnings.
        now: Seconds of the Unix epoch.
    """

    def __init__(
        self,
        connect: Callable[[], Dataflow],
        address: JobAddress,
        *,
        poller: JobStateMachine,
        cost_usd: Cost,
        journal_uri: str,
        log: TaskLog,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.address = address
        self._connect = connect
        self._client: Dataflow | None = None
        self._poller = poller
        self._cost_usd = cost_usd
        self._journal_uri = journal_uri
        self._log = log
        self._now = now
        self._progress = ProgressLog(log, cost_usd)
        self._state = ""
        self._metrics_failed = False

    def poll(self) -> Wait | JobResult:
        """Looks once, and does what follows.

        Returns:
            How long to wait for the next look, or the end.
        """
        match self._decide():
            case Wait() as wait:
                if wait.message:
                    self._log.log(logging.WARNING, "%s", wait.message)
                return wait
            case Follow(job_id):
                self._say(logging.WARNING, f"was replaced by job {job_id!r}, which is waited for now.")
                self.address = replace(self.address, job_id=job_id)
                return Wait(FOLLOWING_SECONDS)
            case OverBudget(cost_usd):
                return self._cancel(cost_usd)
            case JobEnded() as end:
                messages = self._error_messages() if self._state == "JOB_STATE_FAILED" else ()
                return job_result(end, self.address, self._state, messages, self._journal_uri)

    def cancel(self) -> None:
        """Asks for the end of the job.

        Raises:
            CloudError: That was refused, or not answered.
        """
        self._dataflow().cancel(self.address.job_id)

    def _decide(self) -> JobDecision:
        try:
            job = self._dataflow().get(self.address.job_id)
            self._show(job)
            cost_usd = self._count(job)
        except CloudError as error:
            return self._poller.on_error(error, self._now())
        return self._poller.on_job(job, cost_usd, self._now())

    def _dataflow(self) -> Dataflow:
        if self._client is None:
            self._client = self._connect()
        return self._client

    def _show(self, job: DataflowJob) -> None:
        if job.state != self._state:
            self._say(logging.INFO, f"is in state {job.state}.")
            self._state = job.state

    def _count(self, job: DataflowJob) -> float | None:
        """Shows the progress and returns the cost so far."""
        try:
            counts = self._dataflow().counts(job.job_id, running=not job.is_over)
        except CloudError as error:
            # A budget that cannot be watched is no budget: then the look has failed. A job that is over is over.
            if self._poller.watches_budget and not job.is_over:
                raise
            if not self._metrics_failed:
                self._log.log(logging.WARNING, "No progress is shown: %s", error)
            self._metrics_failed = True
            return None
        self._metrics_failed = False
        self._progress.show(counts, self._now())
        return self._cost_usd(counts)

    def _cancel(self, cost_usd: float) -> Wait:
        self._say(logging.WARNING, f"cost ${cost_usd:,.2f} so far, more than `limits.budget_usd`: cancelling it.")
        try:
            self.cancel()
        except CloudError as error:
            self._log.log(logging.WARNING, "%s Asking again in %.0f s.", error, CANCELLING_SECONDS)
        return Wait(CANCELLING_SECONDS)

    def _error_messages(self) -> Sequence[str]:
        try:
            return self._dataflow().error_messages(self.address.job_id)
        except CloudError as error:
            return (f"They could not be read: {error}",)

    def _say(self, level: int, words: str) -> None:
        self._log.log(level, "Dataflow job %r %s", self.address.job_id, words)
