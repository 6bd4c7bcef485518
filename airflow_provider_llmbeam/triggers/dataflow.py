"""Waits for a job on Dataflow without a worker slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_llmbeam.hooks.connections import plain_chain
from airflow_provider_llmbeam.hooks.google.dataflow_job import JobAddress
from airflow_provider_llmbeam.jobs.cancellation import Storage
from airflow_provider_llmbeam.jobs.monitor import JobClient
from airflow_provider_llmbeam.triggers.job import JobTrigger


class DataflowJobTrigger(JobTrigger):
    """Polls a job on Dataflow until it has ended, and fires one event: `JobResult.to_event`.

    Args:
        project: Google Cloud project.
        location: Region.
        impersonation_chain: Service account to impersonate, or a chain of them.
        arguments: See `JobTrigger`.
    """

    def __init__(
        self,
        *,
        project: str,
        location: str,
        impersonation_chain: str | Sequence[str] | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        self.project = project
        self.location = location
        self.impersonation_chain = plain_chain(impersonation_chain)

    def _address(self) -> JobAddress:
        return JobAddress(self.project, self.location, self.job_id)

    def _connect(self) -> JobClient:
        # Imported here, so that a Dag file that defers does not load Google's clients.
        from airflow_provider_llmbeam.hooks.dataflow import DataflowJobHook

        return DataflowJobHook(self.location, self.project, self.gcp_conn_id, self.impersonation_chain)

    def _connect_storage(self) -> Storage:
        from airflow_provider_llmbeam.hooks.storage import StorageHook

        return StorageHook(self.project, self.gcp_conn_id, self.impersonation_chain)
