"""Finds or submits a task's job on Dataflow, and cancels it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_provider_llmbeam.hooks.google.dataflow_job import JobAddress
from airflow_provider_llmbeam.jobs.flex_template import environment
from airflow_provider_llmbeam.jobs.job import Job
from airflow_provider_llmbeam.jobs.job_launcher import JobLauncher
from airflow_provider_llmbeam.jobs.outcome import JobResult, failure
from airflow_provider_llmbeam.jobs.process import JobProcess
from airflow_provider_llmbeam.jobs.registry import JobRegistry, SubmittedJob
from airflow_provider_llmbeam.spec.identity import dataflow_name, job_identity, labels
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.runner import DataflowRunner
from airflow_provider_llmbeam.spec.source import FilesSource

if TYPE_CHECKING:
    from airflow_provider_llmbeam.hooks.dataflow import DataflowJobHook
    from airflow_provider_llmbeam.hooks.storage import StorageHook


class DataflowLauncher(JobLauncher):
    """Launches the job of one task on Dataflow.

    Args:
        gcp_conn_id: Connection of type Google Cloud.
        impersonation_chain: Service account to impersonate, or a chain of them.
        store: State store of the task; `None` below Airflow 3.3.
        log: Log of the task.
    """

    service = JobAddress.service

    def __init__(
        self, gcp_conn_id: str, impersonation_chain: str | Sequence[str] | None, store: Any, log: Any
    ) -> None:
        self._gcp_conn_id = gcp_conn_id
        self._chain = impersonation_chain
        super().__init__(store, log)

    def project(self, location: str) -> str:
        """Returns the project of the connection or of its credentials.

        Raises:
            JobSpecError: Neither names one.
        """
        from airflow_provider_llmbeam.hooks.google.errors import before_submission

        with before_submission():
            return self._hook(location, None).project

    def _obtain(self, spec: JobSpec) -> SubmittedJob:
        from airflow_provider_llmbeam.hooks.google.errors import before_submission

        runner = _runner(spec)
        hook = self._hook(runner.location, runner.project)
        jobs = self._registry(hook, runner.project)
        with before_submission():
            self._check_buckets(spec, runner)
            self._end_elsewhere(spec)
            if (found := jobs.find(spec)) is not None:
                return found
            jobs.intend(spec)
            if runner.flex_template is not None:
                job_id = self._launch(spec, runner, runner.flex_template, hook)
            else:
                job_id = self._submit(spec, hook)
        return jobs.remember(SubmittedJob.of(spec, job_id, is_attached=False))

    def cancel(self, job: SubmittedJob) -> None:
        """Requests the cancellation of a job."""
        self._hook(job.location, job.project).cancel(job.id)

    def running(self, spec: JobSpec) -> Sequence[Job]:
        """Returns the running jobs of the task."""
        runner = _runner(spec)
        return self._hook(runner.location, runner.project).find(job_identity(spec), active_only=True)

    def find_command(self, spec: JobSpec) -> str:
        """Returns the shell command that lists the jobs of the task."""
        runner = _runner(spec)
        return (
            f"gcloud dataflow jobs list --status=active '--filter=name:{job_identity(spec)}-*' "
            f"--region={runner.location} --project={runner.project}"
        )

    def _registry_of(self, job: SubmittedJob) -> JobRegistry:
        return self._registry(self._hook(job.location, job.project), job.project)

    def _files_of(self, job: SubmittedJob, uri: str) -> StorageHook:
        return self._storage(job.project)

    def _registry(self, hook: DataflowJobHook, project: str | None) -> JobRegistry:
        return JobRegistry(hook, self._storage(project), self._store, self._log)

    def _hook(self, location: str, project: str | None) -> DataflowJobHook:
        from airflow_provider_llmbeam.hooks.dataflow import DataflowJobHook

        return DataflowJobHook(location, project, self._gcp_conn_id, self._chain)

    def _storage(self, project: str | None) -> StorageHook:
        from airflow_provider_llmbeam.hooks.storage import StorageHook

        return StorageHook(project, self._gcp_conn_id, self._chain)

    def _check_buckets(self, spec: JobSpec, runner: DataflowRunner) -> None:
        """Checks each bucket of the job once; Beam would retry for minutes and report less."""
        uris = [spec.paths.temp_uri, spec.paths.home_uri, spec.paths.output_uri]
        if isinstance(spec.source, FilesSource):
            uris.append(spec.source.uri)
        storage = self._storage(runner.project)
        for uri in {urlsplit(uri)[:2]: uri for uri in reversed(uris)}.values():
            if uri.startswith("gs://"):
                storage.check(uri)

    def collect(self, job: SubmittedJob, result: JobResult) -> dict[str, Any]:
        """Reads the report of a finished job; the error of one that did not start is that of its launcher."""
        uri = job.launch_error_uri
        if result.outcome == "failed" and uri and (text := self._read_file(job, uri, "error of the launcher")):
            error = failure([text], f"The launcher of Dataflow job {job.id!r}", job.journal_uri)
            result = replace(result, message=str(error), error_type=type(error).__name__)
        return super().collect(job, result)

    def _submit(self, spec: JobSpec, hook: DataflowJobHook) -> str:
        # For later inspection of the job. If this write is refused, Beam's would be, too, after minutes.
        self._storage(hook.project).write(
            f"{spec.paths.temp_uri}{dataflow_name(spec)}.json", spec.model_dump_json()
        )
        chain = self._chain if isinstance(self._chain, str) else ",".join(self._chain or ())
        from airflow_provider_llmbeam.hooks.kafka import kafka_environment

        self._fail_if_killed()
        self._process = JobProcess(spec, kafka_environment(source=spec.source), self._log)
        with hook.provide_gcp_credential_file_as_context():
            return self._process.submit([f"--impersonate_service_account={chain}"] if chain else [])["id"]

    def _launch(self, spec: JobSpec, runner: DataflowRunner, template_uri: str, hook: DataflowJobHook) -> str:
        spec_uri, storage = f"{spec.paths.home_uri}spec.json", self._storage(runner.project)
        storage.write(spec_uri, spec.model_dump_json())
        storage.write(spec.paths.launch_error_uri, "")  # that of an earlier try
        self._fail_if_killed()
        launched = hook.launch_flex_template(
            template_uri,
            name=dataflow_name(spec),
            parameters={"spec": spec_uri},
            environment=environment(runner, spec.paths.temp_uri),
            labels=labels(spec),
        )
        return launched.job_id


def _runner(spec: JobSpec) -> DataflowRunner:
    assert isinstance(spec.runner, DataflowRunner)
    return spec.runner
