"""What a task does about its job on Dataflow: obtain, watch, collect, abandon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_provider_llmbeam.dataflow.flex_template import environment
from airflow_provider_llmbeam.dataflow.outcome import JobResult
from airflow_provider_llmbeam.dataflow.registry import JobRegistry, SubmittedJob
from airflow_provider_llmbeam.exceptions import LLMBeamError
from airflow_provider_llmbeam.spec.identity import JOB_LABEL, dataflow_name, identity, labels
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.model.price import price_of
from airflow_provider_llmbeam.spec.runner import DataflowRunner
from airflow_provider_llmbeam.spec.source import FilesSource
from airflow_provider_llmbeam.tasks.process import JobProcess
from airflow_provider_llmbeam.triggers.dataflow import DataflowJobTrigger

if TYPE_CHECKING:
    from airflow_provider_llmbeam.hooks.dataflow import DataflowJobHook
    from airflow_provider_llmbeam.hooks.storage import StorageHook


class DataflowLauncher:
    """One task's dealings with Dataflow.

    Args:
        gcp_conn_id: Connection of type Google Cloud.
        impersonation_chain: Service account to act as, or several.
        store: The task's state store; `None` below Airflow 3.3.
        log: Of the task.
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
        """The project of the connection or of its credentials.

        Raises:
            JobSpecError: Neither names one.
        """
        from airflow_provider_llmbeam.google_cloud.errors import before_submission

        with before_submission():
            return self._hook(location, None).project

    def obtain(self, spec: JobSpec, runner: DataflowRunner) -> SubmittedJob:
        """Finds the job that an earlier try left, or submits it.

        Raises:
            JobSpecError: Dataflow does not take it; nothing was billed.
            LLMBeamError: It is not known whether there is a job; a retry finds it.
        """
        from airflow_provider_llmbeam.google_cloud.errors import before_submission

        hook = self._hook(runner.location, runner.project)
        jobs = JobRegistry(hook, self._store, self._log)
        with before_submission():
            self._check_buckets(spec, runner)
            if (found := jobs.find(spec)) is not None:
                return found
            jobs.intend(spec)
            if runner.flex_template is not None:
                job_id = self._launched(spec, runner, runner.flex_template, hook)
            else:
                job_id = self._submitted(spec, hook)
        return jobs.remember(SubmittedJob.of(spec, job_id, is_attached=False))

    def trigger(self, spec: JobSpec, runner: DataflowRunner, job: SubmittedJob) -> DataflowJobTrigger:
        """Waits for the job without a worker slot."""
        price = price_of(spec.model, spec.limits.price)
        return DataflowJobTrigger(
            project=job.project,
            location=job.location,
            job_id=job.id,
            journal_uri=job.journal_uri,
            gcp_conn_id=self._gcp_conn_id,
            impersonation_chain=self._chain,
            poll_interval_seconds=runner.poll_interval_seconds,
            budget_usd=spec.limits.budget_usd,
            price=price.model_dump() if price else None,
            cancel_on_kill=job.cancel_on_kill,
        )

    def collect(self, job: SubmittedJob, seen: JobResult) -> dict[str, Any]:
        """Reads what a job left that is done.

        Returns:
            The manifest.

        Raises:
            LLMBeamError: The job did not succeed, or its report cannot be read.
        """
        if seen.error is not None:
            raise seen.error
        self._log.info("%s", seen.message)
        hook = self._hook(job.location, job.project)
        jobs = JobRegistry(hook, self._store, self._log)
        return jobs.collect(replace(job, id=seen.job_id), self._storage(job.project))

    def abandon(self, job: SubmittedJob, why: str) -> None:
        """Sees to a job that nobody waits for any more; says what still bills."""
        kept = f"What was answered is kept in {job.journal_uri!r}."
        to_end = f"To end it: {job.address.cancel_command}."
        if not job.cancel_on_kill:
            self._log.warning(
                "%s Dataflow job %r is left running and billing (`runner.cancel_on_kill` is off). %s %s",
                why,
                job.id,
                to_end,
                kept,
            )
            return
        try:
            self._hook(job.location, job.project).cancel(job.id)
        except LLMBeamError as error:
            self._log.error(
                "%s Dataflow job %r may still be running and billing: %s %s %s", why, job.id, error, to_end, kept
            )
        else:
            self._log.warning("%s Dataflow job %r was cancelled. %s", why, job.id, kept)

    def abandon_left(self, spec: JobSpec, why: str) -> None:
        """Does the same for what runs of a job, as its label finds it: for a task that knows the id no more."""
        runner = spec.runner
        assert isinstance(runner, DataflowRunner)
        try:
            found = self._hook(runner.location, runner.project).find(identity(spec.name), active_only=True)
        except LLMBeamError as error:
            self._log.error(
                "%s Its job may still be running and billing: %s To find it: gcloud dataflow jobs list "
                "--status=active --filter=labels.%s=%s --region=%s --project=%s",
                why,
                error,
                JOB_LABEL,
                identity(spec.name),
                runner.location,
                runner.project,
            )
            return
        if not found:
            self._log.warning("%s No job of this task runs any more.", why)
        for job in found:
            self.abandon(SubmittedJob.of(spec, job.job_id, is_attached=True), why)

    def stop(self) -> None:
        """Ends a submission under way; a job that it made is found by the next try, by its name."""
        if self._process is not None:
            self._process.stop()

    def _hook(self, location: str, project: str | None) -> DataflowJobHook:
        from airflow_provider_llmbeam.hooks.dataflow import DataflowJobHook

        return DataflowJobHook(location, project, self._gcp_conn_id, self._chain)

    def _storage(self, project: str | None) -> StorageHook:
        from airflow_provider_llmbeam.hooks.storage import StorageHook

        return StorageHook(project, self._gcp_conn_id, self._chain)

    def _check_buckets(self, spec: JobSpec, runner: DataflowRunner) -> None:
        """Looks once into each bucket of the job, since Beam would look again and again, and say less."""
        places = [spec.temp_uri, spec.home_uri, spec.output_uri]
        if isinstance(spec.source, FilesSource) and runner.flex_template is None:  # there the launcher lists it
            places.append(spec.source.uri)
        storage = self._storage(runner.project)
        for uri in {urlsplit(uri)[:2]: uri for uri in reversed(places)}.values():
            if uri.startswith("gs://"):
                storage.check(uri)

    def _submitted(self, spec: JobSpec, hook: DataflowJobHook) -> str:
        # For whoever looks into the job later; and where this is refused, Beam would try for minutes.
        self._storage(hook.project).write(f"{spec.temp_uri}{dataflow_name(spec)}.json", spec.model_dump_json())
        chain = self._chain if isinstance(self._chain, str) else ",".join(self._chain or ())
        self._process = JobProcess(spec, {}, self._log)
        with hook.provide_gcp_credential_file_as_context():
            return self._process.submit([f"--impersonate_service_account={chain}"] if chain else [])["id"]

    def _launched(self, spec: JobSpec, runner: DataflowRunner, template_uri: str, hook: DataflowJobHook) -> str:
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
