"""Launches the job of a task on a service: finds or submits it, collects its report, cancels it or leaves it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from airflow_provider_llmbeam.exceptions import (
    CloudError,
    CloudUnavailableError,
    JobFailedError,
    JobSpecError,
    LLMBeamError,
    TooManyFailedRowsError,
)
from airflow_provider_llmbeam.jobs.cancellation import cancel_or_leave
from airflow_provider_llmbeam.jobs.client import Files, JobClient, open_client, open_files
from airflow_provider_llmbeam.jobs.outcome import JobResult
from airflow_provider_llmbeam.jobs.process import JobProcess
from airflow_provider_llmbeam.jobs.registry import JobRegistry, SubmittedJob, is_of_another_run, read_record
from airflow_provider_llmbeam.spec.identity import job_identity
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.manifest import encoded_page

_KILLED = "The task was killed."


class JobLauncher(ABC):
    """Launches the job of one task where it outlives the process that submits it.

    Args:
        gcp_conn_id: Connection of type Google Cloud.
        impersonation_chain: Service account to impersonate on Dataflow, or a chain of them.
        store: State store of the task; `None` below Airflow 3.3.
        log: Log of the task.
    """

    #: Name of the service, see `JobAddress.service`.
    service: ClassVar[str]

    def __init__(
        self, gcp_conn_id: str, impersonation_chain: str | Sequence[str] | None, store: Any, log: Any
    ) -> None:
        self._gcp_conn_id = gcp_conn_id
        self._chain = impersonation_chain
        self._store = store
        self._log = log
        self._process: JobProcess | None = None
        self._spec: JobSpec | None = None
        self._is_killed = False

    def obtain(self, spec: JobSpec) -> SubmittedJob:
        """Finds the job of an earlier try, or submits a new one.

        Raises:
            JobSpecError: The service refuses the job; nothing was billed.
            JobFailedError: The task was killed meanwhile; see `kill`.
            LLMBeamError: It is unknown whether the job was submitted; a retry finds it.
        """
        self._spec, job = spec, None
        try:
            job = self._obtain(spec)
        finally:
            # The handler of SIGTERM calls `kill` and returns, and what it interrupted goes on (Airflow 3.3.2).
            if self._is_killed:
                self.kill(job)
        self._fail_if_killed()
        return job

    def _obtain(self, spec: JobSpec) -> SubmittedJob:
        from airflow_provider_llmbeam.hooks.google.errors import before_submission

        planned = SubmittedJob.of(spec, "", is_attached=False)
        registry = self._registry(planned)
        with before_submission():
            self._check(spec)
            self._cancel_elsewhere(planned)
            if (found := registry.find(spec)) is not None:
                return found
            registry.intend(spec)
        return registry.remember(replace(planned, id=self._submit(spec)))

    @abstractmethod
    def find_command(self, spec: JobSpec) -> str:
        """Returns the shell command that lists the jobs of the task."""

    @abstractmethod
    def _check(self, spec: JobSpec) -> None:
        """Checks what would fail late, before anything is submitted."""

    @abstractmethod
    def _submit(self, spec: JobSpec) -> str:
        """Submits the job, and returns the ID that the service gave it."""

    def _client(self, job: SubmittedJob) -> JobClient:
        return open_client(job, self._gcp_conn_id, self._chain)

    def _files(self, job: SubmittedJob, uri: str) -> Files:
        return open_files(job, uri, self._gcp_conn_id, self._chain)

    def _registry(self, job: SubmittedJob) -> JobRegistry:
        return JobRegistry(self._client(job), self._files(job, job.report_uri), self._store, self._log)

    def _fail_if_killed(self) -> None:
        """Fails after `kill`; called before a job is submitted.

        Raises:
            JobFailedError: The task was killed.
        """
        if self._is_killed:
            raise JobFailedError(f"{_KILLED} The log says above whether a job of it is still running and billing.")

    def _cancel_elsewhere(self, planned: SubmittedJob) -> None:
        """Cancels the recorded job of an earlier try whose region, project or cluster was another one.

        It is not found where the job of this try is searched, and would run and bill beside it.

        Raises:
            CloudUnavailableError: Its state is unknown; nothing was submitted, and a retry checks again.
            JobFailedError: It does not end.
        """
        record = read_record(self._store)
        if "id" not in record:
            return
        job = SubmittedJob(**record)
        if job.address == replace(planned, id=job.id).address:
            return
        try:
            if job.address.service != self.service:
                raise JobSpecError(f"The `runner` of this try is not on {job.address.service}.")
            self._registry(job).cancel_and_wait(job)
        except CloudUnavailableError:
            raise
        except (CloudError, JobSpecError) as error:
            self._log.warning(
                "%s job %r of an earlier try may still be running and billing, and was not ended: %s To cancel "
                "it: %s.",
                job.address.service,
                job.id,
                error,
                job.address.cancel_command,
            )

    def collect(self, job: SubmittedJob, result: JobResult) -> dict[str, Any]:
        """Reads the report of a finished job.

        Returns:
            The manifest.

        Raises:
            LLMBeamError: The job did not succeed, or its report cannot be read.
        """
        if (error := result.error) is not None:
            if isinstance(error, JobSpecError | TooManyFailedRowsError):
                error.page = self.page(job, job.failed_html_uri)
            raise error
        self._log.info("%s", result.message)
        return self._registry(job).collect(replace(job, id=result.job_id))

    def page(self, job: SubmittedJob, uri: str | None) -> dict[str, Any] | None:
        """Returns the page of a report, see `encoded_page`; `None` if there is none that can be read."""
        if uri is None or (text := self._read_file(job, uri, "report")) is None:
            return None
        return encoded_page(text, uri)

    def _read_file(self, job: SubmittedJob, uri: str, what: str) -> str | None:
        """Reads a file that a job may have written; `None` if there is none that can be read."""
        try:
            files = self._files(job, uri)
            return files.read(uri) if files.exists(uri) else None
        except LLMBeamError as error:
            self._log.warning("The %s %r cannot be read, and is not shown here: %s", what, uri, error)
            return None

    def abandon(self, job: SubmittedJob, reason: str) -> None:
        """Cancels a job that the task no longer waits for, or leaves it; logs what still bills."""
        cancel_or_leave(job, lambda: self._client(job).cancel(job.id), reason, self._log)

    def abandon_running(self, spec: JobSpec, reason: str) -> None:
        """Does the same for the running jobs of the task, if their IDs are lost."""
        planned = SubmittedJob.of(spec, "", is_attached=True)
        try:
            listed = self._client(planned).find(job_identity(spec), active_only=True)
        except LLMBeamError as error:
            command = self.find_command(spec)
            self._log.error(
                "%s Its job may still be running and billing: %s To find it: %s", reason, error, command
            )
            return
        running = [job for job in listed if not is_of_another_run(job, spec)]
        if not running:
            self._log.warning("%s No job of this task is running.", reason)
        for job in running:
            self.abandon(replace(planned, id=job.job_id), reason)

    def kill(self, job: SubmittedJob | None) -> None:
        """Stops a submission in progress, and cancels the job of a task that was killed, or leaves it running.

        Args:
            job: The job; `None` if it is not known, in which case it is that of the last call of `obtain`, if any.
        """
        self._is_killed = True
        if self._process is not None:
            self._process.stop()
        if job is not None:
            self.abandon(job, _KILLED)
        elif self._spec is not None:
            self.abandon_running(self._spec, _KILLED)
