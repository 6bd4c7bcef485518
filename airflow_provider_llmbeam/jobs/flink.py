"""A task's job on Flink: the client with the counts of its workers, and the launcher."""

from __future__ import annotations

import json
from contextlib import suppress

from airflow_provider_llmbeam.exceptions import CloudUnavailableError
from airflow_provider_llmbeam.flink.cluster import FlinkCluster
from airflow_provider_llmbeam.jobs.cancellation import STOP_REQUEST_SECONDS
from airflow_provider_llmbeam.jobs.client import Files
from airflow_provider_llmbeam.jobs.launcher import JobLauncher
from airflow_provider_llmbeam.jobs.process import JobProcess
from airflow_provider_llmbeam.spec.identity import job_identity
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.counts import Counts
from airflow_provider_llmbeam.spec.runner.flink import FlinkRunner


class FlinkClient(FlinkCluster):
    """Reads and cancels the jobs of a cluster, and reads the counts of one.

    Flink shows the counters of a step when its bundle has ended, which in batch is a whole partition, so the
    workers write their counts to objects.

    Args:
        rest_url: Address of the REST API.
        files: Client of the filesystem of the job.
        progress_prefix: Beginning of the addresses of the counts.
        stop_uri: File whose existence ends the workers.
    """

    def __init__(self, rest_url: str, files: Files, progress_prefix: str, stop_uri: str) -> None:
        super().__init__(rest_url)
        self._files = files
        self._progress_prefix = progress_prefix
        self._stop_uri = stop_uri

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
        self._files.write(self._stop_uri, "", STOP_REQUEST_SECONDS)

    def counts(self, job_id: str, *, running: bool) -> Counts:
        """Returns the sum of the counts.

        Raises:
            CloudError: They cannot be read.
        """
        texts = (self._files.read(uri) for uri in self._files.list(self._progress_prefix) if uri.endswith(".json"))
        return sum(map(_parse_counts, texts), Counts())


class FlinkLauncher(JobLauncher):
    """Launches the job of one task on a Flink cluster."""

    service = "Flink"

    def find_command(self, spec: JobSpec) -> str:
        """Returns the shell command that lists the jobs of the cluster."""
        assert isinstance(spec.runner, FlinkRunner)
        return f"curl '{spec.runner.rest_url}/jobs/overview', for names that begin with {job_identity(spec)!r}"

    def _check(self, spec: JobSpec) -> None:
        """Checks nothing: the process that submits the job checks the cluster."""

    def _submit(self, spec: JobSpec) -> str:
        from airflow_provider_llmbeam.hooks.google.authentication import google_credentials

        self._fail_if_killed()
        self._process = JobProcess(spec, {}, self._log)
        with google_credentials(spec, self._gcp_conn_id):
            return str(self._process.submit()["id"])


def _parse_counts(text: str) -> Counts:
    try:
        return Counts(**json.loads(text))
    except (ValueError, TypeError):  # replaced while it is read, or of another version
        return Counts()
