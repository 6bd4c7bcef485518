"""What the launchers of all services share: collecting, leaving and cancelling the job of a task."""

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
from airflow_provider_llmbeam.jobs.job import Job
from airflow_provider_llmbeam.jobs.outcome import JobResult
from airflow_provider_llmbeam.jobs.process import JobProcess
from airflow_provider_llmbeam.jobs.registry import (
    Files,
    SubmittedJob,
    SubmittedJobs,
    is_of_another_run,
    recorded,
)
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.manifest import encoded_page

_KILLED = "The task was killed."


class JobLauncher(ABC):
    """Launches the job of one task where it outlives the process that submits it.

    Args:
        store: State store of the task; `None` below Airflow 3.3.
        log: Log of the task.
    """

    #: Name of the service, see `Address.service`.
    service: ClassVar[str]

    def __init__(self, store: Any, log: Any) -> None:
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

    @abstractmethod
    def _obtain(self, spec: JobSpec) -> SubmittedJob: ...

    def _fail_if_killed(self) -> None:
        """Fails after `kill`; called before a job is submitted.

        Raises:
            JobFailedError: The task was killed.
        """
        if self._is_killed:
            raise JobFailedError(f"{_KILLED} The log says above whether a job of it is still running and billing.")

    def _end_elsewhere(self, spec: JobSpec) -> None:
        """Ends the recorded job of an earlier try whose region, project or cluster was another one.

        It is not found where the job of this try is looked for, and would run and bill beside it.

        Raises:
            CloudUnavailableError: Its state is unknown; nothing was submitted, and a retry checks again.
            JobFailedError: It does not end.
        """
        kept = recorded(self._store)
        if "id" not in kept:
            return
        job = SubmittedJob(**kept)
        if job.address == SubmittedJob.of(spec, job.id, is_attached=True).address:
            return
        try:
            if job.address.service != self.service:
                raise JobSpecError(f"The `runner` of this try is not on {job.address.service}.")
            self._registry_of(job).end_left(job)
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

    @abstractmethod
    def cancel(self, job: SubmittedJob) -> None:
        """Requests the cancellation of a job.

        Raises:
            CloudError: The request was refused or not answered.
        """

    @abstractmethod
    def running(self, spec: JobSpec) -> Sequence[Job]:
        """Returns the running jobs of the task.

        Raises:
            CloudError: The request was refused or not answered.
        """

    @abstractmethod
    def find_command(self, spec: JobSpec) -> str:
        """Returns the shell command that lists the jobs of the task."""

    @abstractmethod
    def _registry_of(self, job: SubmittedJob) -> SubmittedJobs: ...

    @abstractmethod
    def _files_of(self, job: SubmittedJob, uri: str) -> Files: ...

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
        return self._registry_of(job).collect(replace(job, id=result.job_id))

    def page(self, job: SubmittedJob, uri: str | None) -> dict[str, Any] | None:
        """Returns the page of a report, see `encoded_page`; `None` if there is none that can be read."""
        if uri is None or (text := self._read_file(job, uri, "report")) is None:
            return None
        return encoded_page(text, uri)

    def _read_file(self, job: SubmittedJob, uri: str, what: str) -> str | None:
        """Reads a file that a job may have written; `None` if there is none that can be read."""
        try:
            files = self._files_of(job, uri)
            return files.read(uri) if files.exists(uri) else None
        except LLMBeamError as error:
            self._log.warning("The %s %r cannot be read, and is not shown here: %s", what, uri, error)
            return None

    def abandon(self, job: SubmittedJob, reason: str) -> None:
        """Cancels a job that the task no longer waits for, or leaves it; logs what still bills."""
        cancel_or_leave(
            job.address,
            lambda: self.cancel(job),
            cancel_on_kill=job.cancel_on_kill,
            reason=reason,
            journal_uri=job.journal_uri,
            log=self._log,
        )

    def abandon_left(self, spec: JobSpec, reason: str) -> None:
        """Does the same for the running jobs of the task, whose id is not known any more."""
        try:
            found = [job for job in self.running(spec) if not is_of_another_run(job, spec)]
        except LLMBeamError as error:
            command = self.find_command(spec)
            self._log.error(
                "%s Its job may still be running and billing: %s To find it: %s", reason, error, command
            )
            return
        if not found:
            self._log.warning("%s No job of this task is running.", reason)
        for job in found:
            self.abandon(SubmittedJob.of(spec, job.job_id, is_attached=True), reason)

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
            self.abandon_left(self._spec, _KILLED)
