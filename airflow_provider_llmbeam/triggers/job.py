"""Waits for a job elsewhere without a worker slot."""

from __future__ import annotations

from abc import abstractmethod

from airflow_provider_llmbeam.jobs.cancellation import Storage, cancel_or_leave
from airflow_provider_llmbeam.jobs.job import Address
from airflow_provider_llmbeam.jobs.monitor import JobClient, JobMonitor
from airflow_provider_llmbeam.jobs.state_machine import JobStateMachine
from airflow_provider_llmbeam.polling.task_log import TaskLog
from airflow_provider_llmbeam.triggers.base import PollingTrigger


class JobTrigger(PollingTrigger[JobMonitor]):
    """Polls a job until it has ended, and fires one event: `JobResult.to_event`.

    Args:
        job_id: ID that the service gave the job.
        journal_uri: Directory of the answers so far, for messages.
        stop_uri: File whose existence ends the job.
        gcp_conn_id: Airflow connection of Google Cloud.
        poll_interval_seconds: Interval between polls, in seconds.
        budget_usd: Cost above which the job is cancelled, in US dollars.
        cancel_on_kill: Whether to cancel the job if the task is marked or cleared.
    """

    def __init__(
        self,
        *,
        job_id: str,
        journal_uri: str,
        stop_uri: str,
        gcp_conn_id: str = "google_cloud_default",
        poll_interval_seconds: float = 30.0,
        budget_usd: float | None = None,
        cancel_on_kill: bool = True,
    ) -> None:
        super().__init__()
        self.job_id = job_id
        self.journal_uri = journal_uri
        self.stop_uri = stop_uri
        self.gcp_conn_id = gcp_conn_id
        self.poll_interval_seconds = poll_interval_seconds
        self.budget_usd = budget_usd
        self.cancel_on_kill = cancel_on_kill

    @abstractmethod
    def _address(self) -> Address: ...

    @abstractmethod
    def _connect(self) -> JobClient: ...

    @abstractmethod
    def _connect_storage(self) -> Storage: ...

    async def on_kill(self) -> None:
        """Cancels the job, or leaves it running, when the task is marked or cleared."""
        await self.end_unless_awaited(self._cancel_or_leave)

    def _cancel_or_leave(self) -> None:
        monitor = self.poller
        cancel_or_leave(
            monitor.address,
            monitor.cancel,
            cancel_on_kill=self.cancel_on_kill,
            reason="The task was marked or cleared while deferred.",
            journal_uri=self.journal_uri,
            log=self.log,
        )

    def make_poller(self, log: TaskLog) -> JobMonitor:
        """Returns a new monitor of the job that writes to `log`."""
        address = self._address()
        return JobMonitor(
            self._connect,
            address,
            poller=JobStateMachine(self.poll_interval_seconds, self.budget_usd, service=address.service),
            journal_uri=self.journal_uri,
            stop_uri=self.stop_uri,
            connect_storage=self._connect_storage,
            log=log,
        )
