"""Finds or submits a task's job on Flink, and cancels it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_llmbeam.flink.cluster import FlinkCluster
from airflow_provider_llmbeam.flink.job import FlinkAddress
from airflow_provider_llmbeam.hooks.object_storage import files_at
from airflow_provider_llmbeam.jobs.flink_client import FlinkJobs
from airflow_provider_llmbeam.jobs.job import Job
from airflow_provider_llmbeam.jobs.job_launcher import JobLauncher
from airflow_provider_llmbeam.jobs.process import JobProcess
from airflow_provider_llmbeam.jobs.registry import Files, SubmittedJob, SubmittedJobs
from airflow_provider_llmbeam.spec.identity import job_identity
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.runner.flink import FlinkRunner


class FlinkLauncher(JobLauncher):
    """Launches the job of one task on a Flink cluster.

    Args:
        gcp_conn_id: Connection of type Google Cloud, for files on Cloud Storage.
        store: State store of the task; `None` below Airflow 3.3.
        log: Log of the task.
    """

    service = FlinkAddress.service

    def __init__(self, gcp_conn_id: str, store: Any, log: Any) -> None:
        super().__init__(store, log)
        self._gcp_conn_id = gcp_conn_id

    def _obtain(self, spec: JobSpec) -> SubmittedJob:
        from airflow_provider_llmbeam.hooks.google.credentials import google_credentials
        from airflow_provider_llmbeam.hooks.google.errors import before_submission

        jobs = self._registry(_cluster(spec).rest_url, spec.paths.home_uri)
        with before_submission():
            self._end_elsewhere(spec)
            if (found := jobs.find(spec)) is not None:
                return found
            jobs.intend(spec)
        self._fail_if_killed()
        self._process = JobProcess(spec, {}, self._log)
        with google_credentials(spec, self._gcp_conn_id):
            job_id = self._process.submit()["id"]
        return jobs.remember(SubmittedJob.of(spec, job_id, is_attached=False))

    def cancel(self, job: SubmittedJob) -> None:
        """Requests the cancellation of a job."""
        files = files_at(job.stop_uri, self._gcp_conn_id)
        FlinkJobs(job.rest_url, files, "", job.stop_uri).cancel(job.id)

    def running(self, spec: JobSpec) -> Sequence[Job]:
        """Returns the running jobs whose names begin with the identity of the task."""
        return _cluster(spec).find(job_identity(spec), active_only=True)

    def find_command(self, spec: JobSpec) -> str:
        """Returns the shell command that lists the jobs of the cluster."""
        return f"curl '{_cluster(spec).rest_url}/jobs/overview', for names that begin with {job_identity(spec)!r}"

    def _registry_of(self, job: SubmittedJob) -> SubmittedJobs:
        return self._registry(job.rest_url, job.report_uri)

    def _files_of(self, job: SubmittedJob, uri: str) -> Files:
        return files_at(uri, self._gcp_conn_id)

    def _registry(self, rest_url: str, uri: str) -> SubmittedJobs:
        return SubmittedJobs(FlinkCluster(rest_url), files_at(uri, self._gcp_conn_id), self._store, self._log)


def _cluster(spec: JobSpec) -> FlinkCluster:
    assert isinstance(spec.runner, FlinkRunner)
    return FlinkCluster(spec.runner.rest_url)
