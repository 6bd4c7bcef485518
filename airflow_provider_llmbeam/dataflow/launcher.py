"""Finds or submits a task's job on Dataflow, collects its report, and cancels it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_provider_llmbeam.dataflow.cancellation import cancel_or_leave
from airflow_provider_llmbeam.dataflow.flex_template import environment
from airflow_provider_llmbeam.dataflow.outcome import JobResult
from airflow_provider_llmbeam.dataflow.registry import JobRegistry, SubmittedJob
from airflow_provider_llmbeam.exceptions import JobSpecError, LLMBeamError, TooManyFailedRowsError
from airflow_provider_llmbeam.manifest import encoded_page
from airflow_provider_llmbeam.spec.identity import JOB_LABEL, dataflow_name, job_identity, labels
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.runner import DataflowRunner
from airflow_provider_llmbeam.spec.source import FilesSource
from airflow_provider_llmbeam.tasks.process import JobProcess

if TYPE_CHECKING:
    from airflow_provider_llmbeam.hooks.dataflow import DataflowJobHook
    from airflow_provider_llmbeam.hooks.storage import StorageHook


class DataflowLauncher:
    """Launches the job of one task on Dataflow.

    Args:
        gcp_conn_id: Connection of type Google Cloud.
        impersonation_chain: Service account to impersonate, or a chain of them.
        store: State store of the task; `None` below Airflow 3.3.
        log: Log of the task.
    """

    def __init__(
        self, gcp_conn_id: str, impersonation_chain: str | Sequence[str] | None, store: Any, log: Any
    ) -> None:
        self._gcp_conn_id = gcp_conn_id
        self._chain = impersonation_chain
        self._store = store
        self._log = log
        self._process: JobProcess | None = None

    def project(self, location: str) -> str:
        """Returns the project of the connection or of its credentials.

        Raises:
            JobSpecError: Neither names one.
        """
        from airflow_provider_llmbeam.google_cloud.errors import before_submission

        with before_submission():
            return self._hook(location, None).project

    def obtain(self, spec: JobSpec, runner: DataflowRunner) -> SubmittedJob:
        """Finds the job of an earlier try, or submits a new one.

        Raises:
            JobSpecError: Dataflow refuses the job; nothing was billed.
            LLMBeamError: It is unknown whether the job was submitted; a retry finds it.
        """
        from airflow_provider_llmbeam.google_cloud.errors import before_submission

        hook = self._hook(runner.location, runner.project)
        jobs = self._registry(hook, runner.project)
        with before_submission():
            self._check_buckets(spec, runner)
            if (found := jobs.find(spec)) is not None:
                return found
            jobs.intend(spec)
            if runner.flex_template is not None:
                job_id = self._launch(spec, runner, runner.flex_template, hook)
            else:
                job_id = self._submit(spec, hook)
        return jobs.remember(SubmittedJob.of(spec, job_id, is_attached=False))

    def collect(self, job: SubmittedJob, result: JobResult) -> dict[str, Any]:
        """Reads the report of a finished job.

        Returns:
            The manifest.

        Raises:
            LLMBeamError: The job did not succeed, or its report cannot be read.
        """
        if (error := result.error) is not None:
            if isinstance(error, JobSpecError | TooManyFailedRowsError):
                error.page = self.page(job.project, job.failed_html_uri)
            raise error
        self._log.info("%s", result.message)
        hook = self._hook(job.location, job.project)
        jobs = self._registry(hook, job.project)
        return jobs.collect(replace(job, id=result.job_id))

    def page(self, project: str, uri: str | None) -> dict[str, Any] | None:
        """Returns the page of a report, see `encoded_page`; `None` if there is none that can be read."""
        try:
            if uri is None or not (storage := self._storage(project)).exists(uri):
                return None
            return encoded_page(storage.read(uri), uri)
        except LLMBeamError as error:
            self._log.warning("The report %r cannot be read, and is not shown here: %s", uri, error)
            return None

    def abandon(self, job: SubmittedJob, reason: str) -> None:
        """Cancels a job that the task no longer waits for, or leaves it; logs what still bills."""
        cancel_or_leave(
            job.address,
            lambda: self._hook(job.location, job.project).cancel(job.id),
            cancel_on_kill=job.cancel_on_kill,
            reason=reason,
            journal_uri=job.journal_uri,
            log=self._log,
        )

    def abandon_left(self, spec: JobSpec, reason: str) -> None:
        """Does the same for the running jobs that carry the label of the task, whose id is not known any more."""
        runner = spec.runner
        assert isinstance(runner, DataflowRunner)
        try:
            found = self._hook(runner.location, runner.project).find(job_identity(spec), active_only=True)
        except LLMBeamError as error:
            self._log.error(
                "%s Its job may still be running and billing: %s To find it: gcloud dataflow jobs list "
                "--status=active --filter=labels.%s=%s --region=%s --project=%s",
                reason,
                error,
                JOB_LABEL,
                job_identity(spec),
                runner.location,
                runner.project,
            )
            return
        if not found:
            self._log.warning("%s No job of this task is running.", reason)
        for job in found:
            self.abandon(SubmittedJob.of(spec, job.job_id, is_attached=True), reason)

    def stop(self) -> None:
        """Stops a submission in progress; the next try finds its job by the name."""
        if self._process is not None:
            self._process.stop()

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
        uris = [spec.temp_uri, spec.home_uri, spec.output_uri]
        if (
            isinstance(spec.source, FilesSource) and runner.flex_template is None
        ):  # the template's launcher lists it
            uris.append(spec.source.uri)
        storage = self._storage(runner.project)
        for uri in {urlsplit(uri)[:2]: uri for uri in reversed(uris)}.values():
            if uri.startswith("gs://"):
                storage.check(uri)

    def _submit(self, spec: JobSpec, hook: DataflowJobHook) -> str:
        # For later inspection of the job. If this write is refused, Beam's would be, too, after minutes.
        self._storage(hook.project).write(f"{spec.temp_uri}{dataflow_name(spec)}.json", spec.model_dump_json())
        chain = self._chain if isinstance(self._chain, str) else ",".join(self._chain or ())
        from airflow_provider_llmbeam.hooks.kafka import kafka_environment

        self._process = JobProcess(spec, kafka_environment(source=spec.source), self._log)
        with hook.provide_gcp_credential_file_as_context():
            return self._process.submit([f"--impersonate_service_account={chain}"] if chain else [])["id"]

    def _launch(self, spec: JobSpec, runner: DataflowRunner, template_uri: str, hook: DataflowJobHook) -> str:
        spec_uri = f"{spec.home_uri}spec.json"
        self._storage(runner.project).write(spec_uri, spec.model_dump_json())
        launched = hook.launch_flex_template(
            template_uri,
            name=dataflow_name(spec),
            parameters={"spec": spec_uri},
            environment=environment(runner, spec.temp_uri),
            labels=labels(spec),
        )
        return launched.job_id
