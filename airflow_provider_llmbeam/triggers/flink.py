"""Waits for a job on Flink without a worker slot."""

from __future__ import annotations

from typing import Any

from airflow_provider_llmbeam.flink.job import FlinkAddress
from airflow_provider_llmbeam.jobs.cancellation import Storage
from airflow_provider_llmbeam.jobs.monitor import JobClient
from airflow_provider_llmbeam.triggers.job import JobTrigger


class FlinkJobTrigger(JobTrigger):
    """Polls a job on Flink until it has ended, and fires one event: `JobResult.to_event`.

    Args:
        rest_url: Address of the REST API of the cluster.
        progress_prefix: Beginning of the addresses of the counts of its workers.
        arguments: See `JobTrigger`.
    """

    def __init__(self, *, rest_url: str, progress_prefix: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.rest_url = rest_url
        self.progress_prefix = progress_prefix

    def _address(self) -> FlinkAddress:
        return FlinkAddress(self.rest_url, self.job_id)

    def _connect(self) -> JobClient:
        # Imported here, so that a Dag file that defers loads no client.
        from airflow_provider_llmbeam.hooks.object_storage import files_at
        from airflow_provider_llmbeam.jobs.flink_client import FlinkJobs

        files = files_at(self.progress_prefix, self.gcp_conn_id)
        return FlinkJobs(self.rest_url, files, self.progress_prefix, self.stop_uri)

    def _connect_storage(self) -> Storage:
        from airflow_provider_llmbeam.hooks.object_storage import files_at

        return files_at(self.stop_uri, self.gcp_conn_id)
