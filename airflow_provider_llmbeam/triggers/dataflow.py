"""Waits for a job on Dataflow without a worker slot."""

from __future__ import annotations

from collections.abc import Sequence

from asgiref.sync import sync_to_async

from airflow_provider_llmbeam.dataflow.cancellation import Storage, cancel_or_leave
from airflow_provider_llmbeam.dataflow.monitor import Dataflow, JobMonitor
from airflow_provider_llmbeam.dataflow.state_machine import JobStateMachine
from airflow_provider_llmbeam.google_cloud.dataflow_job import JobAddress
from airflow_provider_llmbeam.hooks.connections import plain_chain
from airflow_provider_llmbeam.polling.task_log import TaskLog
from airflow_provider_llmbeam.triggers.base import PollingTrigger


class DataflowJobTrigger(PollingTrigger[JobMonitor]):
    """Polls a job until it has ended, and fires one event: `JobResult.to_event`.

    Args:
        project: Google Cloud project.
        location: Region.
        job_id: ID that Dataflow gave the job.
        journal_uri: Directory of the answers so far, for messages.
        stop_uri: File whose existence ends the job.
        gcp_conn_id: Airflow connection.
        impersonation_chain: Service account to impersonate, or a chain of them.
        poll_interval_seconds: Interval between polls, in seconds.
        budget_usd: Cost above which the job is cancelled, in US dollars.
        cancel_on_kill: Whether to cancel the job if the task is marked or cleared.
    """

    def __init__(
        self,
        *,
        project: str,
        location: str,
        job_id: str,
        journal_uri: str,
        stop_uri: str,
        gcp_conn_id: str = "google_cloud_default",
        impersonation_chain: str | Sequence[str] | None = None,
        poll_interval_seconds: float = 30.0,
        budget_usd: float | None = None,
        cancel_on_kill: bool = True,
    ) -> None:
        super().__init__()
        self.project = project
        self.location = location
        self.job_id = job_id
        self.journal_uri = journal_uri
        self.stop_uri = stop_uri
        self.gcp_conn_id = gcp_conn_id
        self.impersonation_chain = plain_chain(impersonation_chain)
        self.poll_interval_seconds = poll_interval_seconds
        self.budget_usd = budget_usd
        self.cancel_on_kill = cancel_on_kill

    async def on_kill(self) -> None:
        """Cancels the job, or leaves it running, when the task is marked or cleared."""
        monitor = self.poller
        await sync_to_async(cancel_or_leave, thread_sensitive=False)(
            monitor.address,
            monitor.cancel,
            cancel_on_kill=self.cancel_on_kill,
            reason="The task was marked or cleared while deferred.",
            journal_uri=self.journal_uri,
            log=self.log,
        )

    def make_poller(self, log: TaskLog) -> JobMonitor:
        """Returns a new monitor of the job that writes to `log`."""
        return JobMonitor(
            self._connect,
            JobAddress(self.project, self.location, self.job_id),
            poller=JobStateMachine(self.poll_interval_seconds, self.budget_usd),
            journal_uri=self.journal_uri,
            stop_uri=self.stop_uri,
            connect_storage=self._connect_storage,
            log=log,
        )

    def _connect(self) -> Dataflow:
        # Imported here, so that a Dag file that defers does not load Google's clients.
        from airflow_provider_llmbeam.hooks.dataflow import DataflowJobHook

        return DataflowJobHook(self.location, self.project, self.gcp_conn_id, self.impersonation_chain)

    def _connect_storage(self) -> Storage:
        from airflow_provider_llmbeam.hooks.storage import StorageHook

        return StorageHook(self.project, self.gcp_conn_id, self.impersonation_chain)
