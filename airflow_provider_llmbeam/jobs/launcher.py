"""The job of a task on Dataflow or Flink: exactly one, regardless of what happened to earlier tries."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_provider_llmbeam.exceptions import (
    CloudError,
    CloudNotFoundError,
    CloudUnavailableError,
    JobFailedError,
    JobRefusedError,
    JobSpecError,
    LLMBeamError,
    TooManyFailedRowsError,
)
from airflow_provider_llmbeam.jobs.cancellation import cancel_or_leave, stop_and_cancel
from airflow_provider_llmbeam.jobs.client import JobClient, SubmittedJob
from airflow_provider_llmbeam.jobs.outcome import JobResult, failure
from airflow_provider_llmbeam.jobs.process import JobProcess
from airflow_provider_llmbeam.spec.identity import dataflow_name, job_identity, run_digest, run_label, spec_digest
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.manifest import closing_lines, encode_page, manifest
from airflow_provider_llmbeam.spec.remote_job import RemoteJob
from airflow_provider_llmbeam.spec.runner import DataflowRunner

if TYPE_CHECKING:
    from airflow_provider_llmbeam.polling.poller import TaskLog

#: Key of the job in the task's state store (Airflow 3.3), which outlives retries and clears.
STORE_KEY = "llmbeam_job"
#: Time limit for a conflicting job to end, in seconds.
END_SECONDS = 600.0
#: Largest assumed difference between the clocks of a worker and of the service, in seconds.
CLOCK_SECONDS = 60.0
_POLL_SECONDS = 5.0
_KILLED = "The task was killed."


class JobLauncher:
    """Finds or submits the job of a task, collects its results, and cancels it or leaves it running.

    The job's name and labels are derived from deployment, Dag, task, run and map index, never from the try number,
    so they identify the job of a try that was killed between submission and record, and never that of another
    Airflow. Dataflow runs one job of a name at a time, so two tries that submit at the same time share one job;
    on Flink the submission sees to that.

    Args:
        connect: Makes the client of the service at the place of a job.
        store: State store of the task, where Airflow has one (3.3). It distinguishes a retry, which collects a
            finished job, from a clear, which runs it again. Without a store a finished job is run again, with the
            answers from the journal.
        log: Log of the task.
        sleep: Function that waits between two polls of a conflicting job; its argument is in seconds.
        now: Function that returns the time in seconds since the Unix epoch.
    """

    def __init__(
        self,
        connect: Callable[[SubmittedJob], JobClient],
        store: Any,
        log: Any,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._connect = connect
        self._store = store
        self._log: TaskLog = log
        self._sleep = sleep
        self._now = now
        self._process: JobProcess | None = None
        self._spec: JobSpec | None = None
        self._is_killed = False

    def obtain(self, spec: JobSpec) -> SubmittedJob:
        """Finds the job of an earlier try, or submits a new one.

        Raises:
            JobSpecError: The service refuses the job; nothing was billed.
            JobFailedError: The task was killed meanwhile, see `kill`; or a conflicting job does not end.
            LLMBeamError: It is unknown whether the job was submitted; a retry finds it.
        """
        self._spec, job = spec, None
        try:
            job = self._find_or_submit(spec)
        finally:
            # The handler of SIGTERM calls `kill` and returns, and what it interrupted goes on (Airflow 3.3.2).
            if self._is_killed:
                self.kill(job)
        self._fail_if_killed()
        return job

    def find(self, spec: JobSpec, client: JobClient) -> SubmittedJob | None:
        """Finds the job of an earlier try: live, or finished and not collected.

        A live job that has a stop file or another spec, or is being cancelled, is ended first and not returned.

        Raises:
            CloudError: A request to the service failed.
            JobFailedError: A conflicting job does not end.
        """
        for job in client.find(job_identity(spec), active_only=True):
            if job.is_over:
                continue
            reason = _reason_to_end(job, spec, client)
            if reason is None:
                self._log.info("Attaching to job %r, which an earlier try submitted.", job.job_id)
                return self._record(SubmittedJob.of(spec, job.job_id, is_attached=True))
            self._end(job, spec.paths.stop_uri, client, reason)
        return self._find_finished(spec, client)

    def collect(self, job: SubmittedJob, result: JobResult) -> dict[str, Any]:
        """Reads the report of a finished job.

        Returns:
            The manifest.

        Raises:
            LLMBeamError: The job did not succeed, or its report cannot be read.
        """
        error, uri = result.error, job.launch_error_uri
        if result.outcome == "failed" and uri and (text := self._read_file(job, uri, "error of the launcher")):
            error = failure([text], f"The launcher of {job.service} job {job.id!r}", job.journal_uri)
        if error is not None:
            if isinstance(error, JobSpecError | TooManyFailedRowsError):
                error.page = self.page(job, job.failed_html_uri)
                if (
                    text := self._read_file(job, f"{job.failed_html_uri.removesuffix('html')}json", "report")
                ) is not None:
                    error.report = manifest(json.loads(text))
            raise error
        self._log.info("%s", result.message)
        return self._read_report(replace(job, id=result.job_id))

    def page(self, job: SubmittedJob, uri: str | None) -> dict[str, Any] | None:
        """Returns the page of a report, see `encode_page`; `None` if there is none that can be read."""
        if uri is None or (text := self._read_file(job, uri, "report")) is None:
            return None
        return encode_page(text, uri)

    def abandon(self, job: SubmittedJob, reason: str) -> None:
        """Cancels a job that the task no longer waits for, or leaves it; logs what still bills."""
        cancel_or_leave(job, lambda: self._connect(job), reason=reason, log=self._log)

    def abandon_all(self, spec: JobSpec, reason: str) -> None:
        """Does the same for the running jobs of the task, whose id is not known any more."""
        wanted = SubmittedJob.of(spec, "", is_attached=True)
        try:
            running = self._connect(wanted).find(job_identity(spec), active_only=True)
        except LLMBeamError as error:
            self._log.error(
                "%s Its job may still be running and billing: %s To find it: %s",
                reason,
                error,
                wanted.find_command(job_identity(spec)),
            )
            return
        found = [job for job in running if not is_of_another_run(job, spec)]
        if not found:
            self._log.warning("%s No job of this task is running.", reason)
        for job in found:
            self.abandon(replace(wanted, id=job.job_id), reason)

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
            self.abandon_all(self._spec, _KILLED)

    def _find_or_submit(self, spec: JobSpec) -> SubmittedJob:
        from airflow_provider_llmbeam.hooks.google.errors import before_submission

        wanted = SubmittedJob.of(spec, "", is_attached=False)
        client = self._connect(wanted)
        with before_submission():
            client.check(spec)
            self._end_job_at_other_place(wanted)
            if (found := self.find(spec, client)) is not None:
                return found
            self._record_intent(spec)
        return self._record(replace(wanted, id=client.submit(spec, self._start_process)))

    def _start_process(self) -> JobProcess:
        from airflow_provider_llmbeam.hooks.connections import kafka_environment

        assert self._spec is not None
        self._fail_if_killed()
        files_at = self._connect(SubmittedJob.of(self._spec, "", is_attached=False)).files
        self._process = JobProcess(
            self._spec, kafka_environment(source=self._spec.source), self._log, files_at=files_at
        )
        return self._process

    def _fail_if_killed(self) -> None:
        """Fails after `kill`.

        Raises:
            JobFailedError: The task was killed.
        """
        if self._is_killed:
            raise JobFailedError(f"{_KILLED} The log says above whether a job of it is still running and billing.")

    def _read_record(self) -> dict[str, Any]:
        """Returns what the state store has of the job of an earlier try; nothing without a store."""
        return (None if self._store is None else self._store.get(STORE_KEY)) or {}

    def _record_intent(self, spec: JobSpec) -> None:
        """Records that a job is about to be submitted.

        If a try dies before `_record`, this makes the next try search for ended jobs too.
        """
        if self._store is not None:
            self._store.set(STORE_KEY, {"digest": spec_digest(spec), "intended_at": self._now()})

    def _record(self, job: SubmittedJob) -> SubmittedJob:
        """Records the job for later tries; a failure is logged: the job runs, and has a name to be found by."""
        if self._store is not None:
            try:
                self._store.set(STORE_KEY, job.plain())
            except Exception as error:  # noqa: BLE001 - of Airflow's API; the task would leave its job running
                self._log.warning("The id of job %r could not be recorded for a retry: %s", job.id, error)
        return job

    def _find_finished(self, spec: JobSpec, client: JobClient) -> SubmittedJob | None:
        kept = self._read_record()
        if not kept or kept["digest"] != spec_digest(spec):
            return None
        if "id" not in kept:
            return self._find_finished_since(spec, client, kept["intended_at"] - CLOCK_SECONDS)
        try:
            if client.get(kept["id"]).phase != "done":
                return None
        except CloudNotFoundError:
            return None
        self._log.info("Job %r of an earlier try is done: collecting its report.", kept["id"])
        return SubmittedJob(**{**kept, "is_attached": True})

    def _find_finished_since(self, spec: JobSpec, client: JobClient, moment: float) -> SubmittedJob | None:
        for job in client.find(job_identity(spec)):
            is_later = job.created_at is not None and job.created_at.timestamp() >= moment
            if job.name == dataflow_name(spec) and job.phase == "done" and is_later:
                self._log.info("Job %r of an earlier try is done: collecting its report.", job.job_id)
                return self._record(SubmittedJob.of(spec, job.job_id, is_attached=True))
        return None

    def _end_job_at_other_place(self, wanted: SubmittedJob) -> None:
        """Ends the recorded job of an earlier try whose region, project or cluster was another one.

        It is not found where the job of this try is looked for, and would run and bill beside it.

        Args:
            wanted: The job of this try, not submitted yet.

        Raises:
            CloudUnavailableError: Its state is unknown; nothing was submitted, and a retry checks again.
            JobFailedError: It does not end.
        """
        kept = self._read_record()
        if "id" not in kept:
            return
        job = SubmittedJob(**kept)
        if job.place == wanted.place:
            return
        try:
            if job.service != wanted.service:
                raise JobRefusedError(f"The `runner` of this try is not on {job.service}.")
            client = self._connect(job)
            if not (found := client.get(job.id)).is_over:
                where = job.rest_url or f"{job.location!r} of project {job.project!r}"
                self._end(found, job.stop_uri, client, f"runs elsewhere, in {where}, and is cancelled now")
        except CloudUnavailableError:
            raise
        except CloudNotFoundError:
            return
        except (CloudError, JobRefusedError, JobSpecError) as error:
            self._log.warning(
                "%s job %r of an earlier try may still be running and billing, and was not ended: %s To cancel "
                "it: %s.",
                job.service,
                job.id,
                error,
                job.cancel_command,
            )

    def _end(self, job: RemoteJob, stop_uri: str, client: JobClient, reason: str) -> None:
        self._log.warning(
            "Job %r of an earlier try %s; waiting for its end. Its answers are in the journal.", job.job_id, reason
        )
        if job.phase != "cancelling":
            stop_and_cancel(job.job_id, stop_uri, client, self._log, self._sleep)
        waited = 0.0
        while not client.get(job.job_id).is_over:
            if waited >= END_SECONDS:
                raise JobFailedError(
                    f"Job {job.job_id!r} of an earlier try did not end within {END_SECONDS:.0f} s of being "
                    "cancelled. It may still be running and billing; nothing else was submitted. A retry checks "
                    "again."
                )
            self._sleep(_POLL_SECONDS)
            waited += _POLL_SECONDS

    def _read_report(self, job: SubmittedJob) -> dict[str, Any]:
        client = self._connect(job)
        counted = _count_rows(job, client, self._log)  # first, as a retry submits a job without a record again
        files = client.files(job.report_uri)
        uri = job.skipped_uri if files.exists(job.skipped_uri) else job.report_uri
        collected = manifest(json.loads(files.read(uri)))
        if self._store is not None:
            self._store.delete(STORE_KEY)
        read = collected["rows"]["read"]
        if counted not in (None, read):
            self._log.warning(
                "Dataflow's counter says that %d rows were read, the report %d. The report adds up what was "
                "written; compare it with the source.",
                counted,
                read,
            )
        for line in closing_lines(collected):
            self._log.info("%s", line)
        return collected

    def _read_file(self, job: SubmittedJob, uri: str, what: str) -> str | None:
        """Reads a file that a job may have written; `None` if there is none that can be read."""
        try:
            files = self._connect(job).files(uri)
            return files.read(uri) if files.exists(uri) else None
        except LLMBeamError as error:
            self._log.warning("The %s %r cannot be read, and is not shown here: %s", what, uri, error)
            return None


def is_of_another_run(job: RemoteJob, spec: JobSpec) -> bool:
    """Returns whether a job of the name of a spec is certainly that of another task or run, with another spec."""
    if job.name == dataflow_name(spec) or (own := run_label(spec)) is None or job.run is None:
        return False
    return job.run != (own if isinstance(spec.runner, DataflowRunner) else run_digest(own))


def _reason_to_end(job: RemoteJob, spec: JobSpec, client: JobClient) -> str | None:
    """Returns why a live job has to end before another is submitted, or `None` if a try can attach to it.

    Raises:
        JobFailedError: It is that of another task or run, which has the same `job_name`.
    """
    if is_of_another_run(job, spec):
        raise JobFailedError(
            f"`job_name`: job {job.job_id!r} of another task or run, {job.run!r}, has the name {spec.name!r} "
            "and is still running and billing. It was left alone, and nothing was submitted; a retry checks "
            "again. Give each task and run a name of its own, or none."
        )
    if job.phase == "cancelling":
        return "is being cancelled"
    if job.name != dataflow_name(spec):
        return "has another specification, and is cancelled now"
    if client.files(spec.paths.stop_uri).exists(spec.paths.stop_uri):
        return f"was told to stop by {spec.paths.stop_uri!r}, and is cancelled now"
    return None


def _count_rows(job: SubmittedJob, client: JobClient, log: TaskLog) -> int | None:
    """Returns the rows that Dataflow has counted; on Flink, workers that were lost have counted rows as well."""
    if job.service != "Dataflow":
        return None
    try:
        return client.counts(job.id, running=False).rows
    except CloudError as error:
        log.warning("The report is not compared with Dataflow's counter of rows: %s", error)
        return None
