"""The clients of the service of a job: what they do for this package, and which one a job has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from airflow_provider_llmbeam.spec.protocol.counts import Counts
from airflow_provider_llmbeam.spec.remote_job import RemoteJob

if TYPE_CHECKING:
    from airflow_provider_llmbeam.jobs.registry import SubmittedJob


class JobClient(Protocol):
    """Client of Dataflow or Flink; every method raises a `CloudError`."""

    def find(self, identity: str, *, active_only: bool = False) -> Sequence[RemoteJob]:
        """Returns the jobs of an identity, newest first."""

    def get(self, job_id: str, within_seconds: float | None = None) -> RemoteJob:
        """Returns a job."""

    def cancel(self, job_id: str) -> None:
        """Requests its cancellation."""

    def counts(self, job_id: str, *, running: bool) -> Counts:
        """Returns its counters."""

    def error_messages(self, job_id: str) -> Sequence[str]:
        """Returns its error messages, oldest first."""


class Files(Protocol):
    """Client of a filesystem; every method raises a `CloudError`."""

    def exists(self, uri: str) -> bool:
        """Returns whether there is a file."""

    def list(self, prefix: str) -> list[str]:
        """Returns the addresses of the files that begin with a prefix."""

    def read(self, uri: str) -> str:
        """Reads a text file."""

    def write(self, uri: str, text: str, within_seconds: float | None = None) -> None:
        """Writes a text file."""


def open_client(job: SubmittedJob, gcp_conn_id: str, impersonation_chain: str | Sequence[str] | None) -> JobClient:
    """Returns the client of the service of a job.

    Args:
        job: The job.
        gcp_conn_id: Connection of type Google Cloud.
        impersonation_chain: Service account to impersonate on Dataflow, or a chain of them.

    Raises:
        CloudError: The connection cannot be read.
    """
    # Imported here, so that a Dag file that defers loads no client.
    if job.rest_url:
        from airflow_provider_llmbeam.jobs.flink import FlinkClient

        files = open_files(job, job.stop_uri, gcp_conn_id, impersonation_chain)
        return FlinkClient(job.rest_url, files, job.progress_prefix, job.stop_uri)
    from airflow_provider_llmbeam.hooks.dataflow import DataflowJobHook

    return DataflowJobHook(job.location, job.project or None, gcp_conn_id, impersonation_chain)


def open_files(
    job: SubmittedJob, uri: str, gcp_conn_id: str, impersonation_chain: str | Sequence[str] | None
) -> Files:
    """Returns the client of the filesystem of an address of a job; see `open_client`."""
    if job.rest_url:
        from airflow_provider_llmbeam.hooks.object_storage import files_at

        return files_at(uri, gcp_conn_id)
    from airflow_provider_llmbeam.hooks.storage import StorageHook

    return StorageHook(job.project or None, gcp_conn_id, impersonation_chain)
