"""The client of the jobs of a Flink cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress

from airflow_provider_llmbeam.exceptions import CloudUnavailableError
from airflow_provider_llmbeam.hooks.google.authentication import google_credentials
from airflow_provider_llmbeam.hooks.storage import ObjectStorage, StorageHook, files_at
from airflow_provider_llmbeam.jobs.cancellation import STOP_REQUEST_SECONDS
from airflow_provider_llmbeam.jobs.client import SubmittedJob
from airflow_provider_llmbeam.jobs.process import JobProcess
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.counts import Counts
from airflow_provider_llmbeam.transport.flink import FlinkCluster


class FlinkClient(FlinkCluster):
    """Submits the job of a task, cancels it, and reads its counts.

    Flink shows the counters of a step when its bundle has ended, which in batch is a whole partition, so the
    workers write their counts to objects.

    Args:
        job: A job of the cluster, with the addresses of its counts and its stop file.
        gcp_conn_id: Connection of type Google Cloud, for files on Cloud Storage.
    """

    def __init__(self, job: SubmittedJob, gcp_conn_id: str) -> None:
        super().__init__(job.rest_url)
        self._job = job
        self._gcp_conn_id = gcp_conn_id

    def files(self, uri: str) -> StorageHook | ObjectStorage:
        """Returns the client of the filesystem of an address."""
        return files_at(uri, self._gcp_conn_id, self._job.kms_key_name)

    def check(self, spec: JobSpec) -> None:
        """Does nothing: the process that submits the job checks the cluster."""

    def submit(self, spec: JobSpec, start: Callable[[], JobProcess]) -> str:
        """Submits a job, unless the cluster runs it already, and returns its ID."""
        process = start()
        with google_credentials(spec, self._gcp_conn_id):
            return process.submit()["id"]

    def cancel(self, job_id: str) -> None:
        """Requests the cancellation of a job, and has its workers record what is in flight and send nothing more.

        Flink 1.19 keeps the workers of a cancelled job: one of them sent 400 requests in 20 s more (measured). A
        job that has ended is left unchanged, and no stop file is written: it would end a later job of its name.

        Raises:
            CloudError: The cancellation was refused, or the workers could not be told.
        """
        with suppress(CloudUnavailableError):  # it may accept the cancellation
            if self.get(job_id, STOP_REQUEST_SECONDS).is_over:
                return
        super().cancel(job_id)
        self.files(self._job.stop_uri).write(self._job.stop_uri, "", STOP_REQUEST_SECONDS)

    def counts(self, job_id: str, *, running: bool) -> Counts:
        """Returns the sum of the counts that the workers have written.

        Raises:
            CloudError: They cannot be read.
        """
        prefix = self._job.progress_prefix
        files = self.files(prefix)
        return sum((_counts(files.read(uri)) for uri in files.list(prefix) if uri.endswith(".json")), Counts())


def _counts(text: str) -> Counts:
    try:
        return Counts(**json.loads(text))
    except (ValueError, TypeError):  # replaced while it is read, or of another version
        return Counts()
