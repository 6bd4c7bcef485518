"""The job of a task on Dataflow or Flink: exactly one, regardless of what happened to earlier tries."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_llmbeam.exceptions import CloudError, CloudNotFoundError, JobFailedError
from airflow_provider_llmbeam.jobs.cancellation import stop_and_cancel
from airflow_provider_llmbeam.jobs.client import Files, JobClient
from airflow_provider_llmbeam.spec.identity import (
    dataflow_name,
    job_identity,
    progress_prefix,
    run_digest,
    run_label,
    spec_digest,
)
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.manifest import manifest
from airflow_provider_llmbeam.spec.remote_job import JobAddress, RemoteJob
from airflow_provider_llmbeam.spec.runner import DataflowRunner, DetachedRunner
from airflow_provider_llmbeam.spec.runner.flink import FlinkRunner

if TYPE_CHECKING:
    from airflow_provider_llmbeam.polling.poller import TaskLog

#: Key of the job in the task's state store (Airflow 3.3), which outlives retries and clears.
STORE_KEY = "llmbeam_job"
#: Time limit for a conflicting job to end, in seconds.
END_SECONDS = 600.0
#: Largest assumed difference between the clocks of a worker and of the service, in seconds.
CLOCK_SECONDS = 60.0
#: Interval between polls of a conflicting job, in seconds.
_POLL_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedJob:
    """Record of a task's job, as plain values that Airflow stores while the task is deferred.

    Attributes:
        id: ID that the service gave the job.
        project: Google Cloud project; empty on Flink.
        location: Region; empty on Flink.
        name: Name that this package gave the job, `JobSpec.name`.
        rest_url: Address of the REST API of the Flink cluster; empty on Dataflow.
        digest: Digest of the spec.
        journal_uri: Directory of the journal, which keeps the answers as they arrive.
        stop_uri: File whose existence ends the job.
        progress_prefix: Beginning of the addresses of the counts that the workers write on Flink.
        report_uri: Address of the future report.
        skipped_uri: Address of the report of a job that is skipped, since its source has no rows.
        failed_html_uri: Address of the page of a job that fails since too many of its rows do.
        launch_error_uri: Address of the error of the launcher of a Flex Template; empty without one.
        cancel_on_kill: Whether the job is cancelled when its task is killed.
        is_attached: Whether an earlier try submitted the job.
    """

    id: str
    project: str
    location: str
    name: str
    rest_url: str
    digest: str
    journal_uri: str
    stop_uri: str
    progress_prefix: str
    report_uri: str
    skipped_uri: str
    failed_html_uri: str
    launch_error_uri: str
    cancel_on_kill: bool
    is_attached: bool

    @classmethod
    def of(cls, spec: JobSpec, job_id: str, *, is_attached: bool) -> Self:
        """Builds the record from a spec, with a project on Dataflow, and the ID that the service gave the job."""
        runner = spec.runner
        assert isinstance(runner, DetachedRunner)
        project, location = (
            (runner.project or "", runner.location) if isinstance(runner, DataflowRunner) else ("", "")
        )
        return cls(
            id=job_id,
            project=project,
            location=location,
            name=spec.name,
            rest_url=runner.rest_url if isinstance(runner, FlinkRunner) else "",
            digest=spec_digest(spec),
            journal_uri=spec.paths.journal_uri,
            stop_uri=spec.paths.stop_uri,
            progress_prefix=progress_prefix(spec),
            report_uri=spec.paths.report_uri,
            skipped_uri=spec.paths.skipped_uri,
            failed_html_uri=spec.paths.failed_html_uri,
            launch_error_uri=spec.paths.launch_error_uri if getattr(runner, "flex_template", None) else "",
            cancel_on_kill=runner.cancel_on_kill,
            is_attached=is_attached,
        )

    @property
    def address(self) -> JobAddress:
        """Address of the job."""
        return JobAddress(self.id, self.project, self.location, self.rest_url)

    def plain(self) -> dict[str, Any]:
        """Returns the record as plain data; `SubmittedJob(**plain)` restores it."""
        return asdict(self)


def read_record(store: Any) -> dict[str, Any]:
    """Returns what the task state store has of the job of an earlier try; nothing without a store."""
    return (None if store is None else store.get(STORE_KEY)) or {}


def is_of_another_run(job: RemoteJob, spec: JobSpec) -> bool:
    """Returns whether a job of the name of a spec is certainly that of another task or run, with another spec."""
    if job.name == dataflow_name(spec) or (own := run_label(spec)) is None or job.run is None:
        return False
    return job.run != (own if isinstance(spec.runner, DataflowRunner) else run_digest(own))


class JobRegistry:
    """Finds a task's job, records it, and collects its results.

    The job's name and labels are derived from deployment, Dag, task, run and map index, never from the try number,
    so they identify the job of a try that was killed between submission and record, and never that of another
    Airflow. Dataflow runs one job of a name at a time, so two tries that submit at the same time share one job;
    on Flink the submission sees to that.

    Args:
        client: Client of the service.
        files: Client that reads the report, and reads and writes the stop file.
        store: State store of the task, where Airflow has one (3.3). It distinguishes a retry, which collects a
            finished job, from a clear, which runs it again. Without a store a finished job is run again, with the
            answers from the journal.
        log: Log of the task.
        sleep: Function that waits between two polls of a conflicting job; its argument is in seconds.
        now: Function that returns the time in seconds since the Unix epoch.
    """

    def __init__(
        self,
        client: JobClient,
        files: Files,
        store: Any,
        log: TaskLog,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._files = files
        self._store = store
        self._log = log
        self._sleep = sleep
        self._now = now

    def find(self, spec: JobSpec) -> SubmittedJob | None:
        """Finds the job of an earlier try: live, or finished and not collected.

        A live job that has a stop file or another spec, or is being cancelled, is ended first and not returned.

        Raises:
            CloudError: A request to Dataflow failed.
            JobFailedError: A conflicting job does not end.
        """
        for job in self._client.find(job_identity(spec), active_only=True):
            if job.is_over:
                continue
            reason = self._reason_to_cancel(job, spec)
            if reason is None:
                self._log.info("Attaching to job %r, which an earlier try submitted.", job.job_id)
                return self.remember(SubmittedJob.of(spec, job.job_id, is_attached=True))
            self._cancel_and_wait(job, spec.paths.stop_uri, reason)
        return self._finished(spec)

    def cancel_and_wait(self, job: SubmittedJob) -> None:
        """Cancels a recorded job, if it is live, and waits for its end.

        Raises:
            CloudError: A request to the service failed.
            JobFailedError: It does not end.
        """
        try:
            found = self._client.get(job.id)
        except CloudNotFoundError:
            return
        if not found.is_over:
            where = job.rest_url or f"{job.location!r} of project {job.project!r}"
            self._cancel_and_wait(found, job.stop_uri, f"runs elsewhere, in {where}, and is cancelled now")

    def intend(self, spec: JobSpec) -> None:
        """Records that a job is about to be submitted.

        If a try dies before `remember`, this record makes the next try search for ended jobs too.
        """
        if self._store is not None:
            self._store.set(STORE_KEY, {"digest": spec_digest(spec), "intended_at": self._now()})

    def remember(self, job: SubmittedJob) -> SubmittedJob:
        """Records the job for later tries; a failure is logged: the job runs, and has a name to be found by."""
        if self._store is not None:
            try:
                self._store.set(STORE_KEY, job.plain())
            except Exception as error:  # noqa: BLE001 - of Airflow's API; the task would leave its job running
                self._log.warning("The id of job %r could not be recorded for a retry: %s", job.id, error)
        return job

    def collect(self, job: SubmittedJob) -> dict[str, Any]:
        """Reads the report of a finished job, and compares it with Dataflow's counters, if they can be read.

        Returns:
            The manifest.

        Raises:
            CloudError: The report cannot be read.
        """
        counted = self._counted_rows(job)  # first, as a retry submits the job again once its record is deleted
        uri = job.skipped_uri if self._files.exists(job.skipped_uri) else job.report_uri
        report: dict[str, Any] = json.loads(self._files.read(uri))
        if self._store is not None:
            self._store.delete(STORE_KEY)
        collected = manifest(report)
        read = collected["rows"]["read"]
        if counted not in (None, read):
            self._log.warning(
                "Dataflow's counter says that %d rows were read, the report %d. The report adds up what was "
                "written; compare it with the source.",
                counted,
                read,
            )
        return collected

    def _counted_rows(self, job: SubmittedJob) -> int | None:
        """Returns Dataflow's counter of rows; `None` on Flink, or if it cannot be read."""
        if job.address.service != "Dataflow":
            return None
        try:
            return self._client.counts(job.id, running=False).rows
        except CloudError as error:
            self._log.warning("The report is not compared with Dataflow's counter of rows: %s", error)
            return None

    def _finished(self, spec: JobSpec) -> SubmittedJob | None:
        kept = read_record(self._store)
        if not kept or kept["digest"] != spec_digest(spec):
            return None
        if "id" not in kept:
            return self._finished_since(spec, kept["intended_at"] - CLOCK_SECONDS)
        try:
            if self._client.get(kept["id"]).phase != "done":
                return None
        except CloudNotFoundError:
            return None
        self._log.info("Job %r of an earlier try is done: collecting its report.", kept["id"])
        return SubmittedJob(**{**kept, "is_attached": True})

    def _finished_since(self, spec: JobSpec, moment: float) -> SubmittedJob | None:
        for job in self._client.find(job_identity(spec)):
            is_later = job.created_at is not None and job.created_at.timestamp() >= moment
            if job.name == dataflow_name(spec) and job.phase == "done" and is_later:
                self._log.info("Job %r of an earlier try is done: collecting its report.", job.job_id)
                return self.remember(SubmittedJob.of(spec, job.job_id, is_attached=True))
        return None

    def _reason_to_cancel(self, job: RemoteJob, spec: JobSpec) -> str | None:
        """Returns why a live job is cancelled before another is submitted, or `None` if a try can attach to it.

        Raises:
            JobFailedError: It is that of another task or run, which has the same `job_name`.
        """
        if is_of_another_run(job, spec):
            raise JobFailedError(
                f"`job_name`: job {job.job_id!r} of another task or run, {job.run!r}, has the name {spec.name!r} "
                "and is still running and billing. It was left alone, and nothing was submitted; a retry checks "
                "again. Give each task and run a name of its own, or none."
            )
        if job.is_cancelling:
            return "is being cancelled"
        if job.name != dataflow_name(spec):
            return "has another specification, and is cancelled now"
        if self._files.exists(spec.paths.stop_uri):
            return f"was told to stop by {spec.paths.stop_uri!r}, and is cancelled now"
        return None

    def _cancel_and_wait(self, job: RemoteJob, stop_uri: str, reason: str) -> None:
        self._log.warning(
            "Job %r of an earlier try %s; waiting for its end. Its answers are in the journal.", job.job_id, reason
        )
        if not job.is_cancelling:
            stop_and_cancel(job.job_id, stop_uri, self._client, lambda: self._files, self._log, self._sleep)
        waited = 0.0
        while not self._client.get(job.job_id).is_over:
            if waited >= END_SECONDS:
                raise JobFailedError(
                    f"Job {job.job_id!r} of an earlier try did not end within {END_SECONDS:.0f} s of being "
                    "cancelled. It may still be running and billing; nothing else was submitted. A retry checks "
                    "again."
                )
            self._sleep(_POLL_SECONDS)
            waited += _POLL_SECONDS
