"""A job on Dataflow as its task sees it: found or submitted, followed, collected."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.manifest import manifest
from airflow_provider_llmbeam.operators.job_process import JobProcess, Log
from airflow_provider_llmbeam.spec.identity import dataflow_name, identity, spec_digest
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.runner import DataflowRunner

if TYPE_CHECKING:
    from airflow_provider_llmbeam.hooks.dataflow import DataflowJobHook
    from airflow_provider_llmbeam.hooks.dataflow_job import DataflowJob

#: Under which a task's state store (Airflow 3.3) keeps the job; it outlives retries and clears.
STORE_KEY = "llmbeam_job"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHandle:
    """What a task keeps of its job; plain values, which Airflow stores while the task is deferred.

    Attributes:
        id: Of the job on Dataflow.
        name: Of the job in our words, `JobSpec.name`.
        digest: Of what was asked for.
        journal_uri: Where the answers are kept as they arrive.
        report_uri: Where the report will be.
        is_attached: Whether another try submitted it.
    """

    id: str
    name: str
    digest: str
    journal_uri: str
    report_uri: str
    is_attached: bool

    @classmethod
    def of(cls, spec: JobSpec, job_id: str, *, is_attached: bool) -> Self:
        """Makes the handle of a spec's job."""
        return cls(
            id=job_id,
            name=spec.name,
            digest=spec_digest(spec),
            journal_uri=spec.journal_uri,
            report_uri=f"{spec.output_uri}report.json",
            is_attached=is_attached,
        )

    def plain(self) -> dict[str, Any]:
        """Returns it as plain data; `JobHandle(**plain)` is the way back."""
        return asdict(self)


class TaskJob:
    """Sees to it that a task has exactly one job, whatever became of its earlier tries.

    The job's name and labels are made of Dag, task, run and map index, never of the try: a try that was killed
    between submission and record is found by them. Dataflow runs one job of a name at a time, so that two tries
    that submit at once end with one, too.

    Args:
        spec: The job, with a `DataflowRunner` whose project is decided.
        hook: Asks Dataflow.
        store: The task's state store, where Airflow has one (3.3): it tells a retry, which collects a finished job,
            from a clear, which runs it again. Without one a finished job is run again; the journal pays.
        log: Of the task.
    """

    #: How long a job that is in the way may take to end.
    CANCEL_SECONDS = 600.0

    def __init__(self, spec: JobSpec, hook: DataflowJobHook, store: Any, log: Log) -> None:
        assert isinstance(spec.runner, DataflowRunner)
        self._spec = spec
        self._runner = spec.runner
        self._hook = hook
        self._store = store
        self._log = log

    def find(self) -> JobHandle | None:
        """Finds the job that an earlier try left, live or finished and not collected.

        A job that is being cancelled, or was asked for something else, is not it: it is ended first.

        Raises:
            JobSpecError: Dataflow cannot be asked.
            JobFailedError: A job that is in the way does not end.
        """
        spec, digest = self._spec, spec_digest(self._spec)
        for job in self._hook.find(identity(spec.name)):
            if job.is_over:
                continue
            if job.name == dataflow_name(spec) and job.state != "JOB_STATE_CANCELLING":
                self._log.info("Attaching to job %s, which an earlier try submitted.", job.job_id)
                return self._remember(JobHandle.of(spec, job.job_id, is_attached=True))
            self._end(job)
        kept = self._store.get(STORE_KEY) if self._store is not None else None
        if kept and kept["digest"] == digest and self._hook.get(kept["id"]).phase == "done":
            self._log.info("Job %s of an earlier try is done: collecting its report.", kept["id"])
            return JobHandle(**{**kept, "is_attached": True})
        return None

    def submit(self, process: JobProcess, beam_options: tuple[str, ...]) -> JobHandle:
        """Submits the job through the door, in a process of its own.

        Raises:
            LLMBeamError: As the door says.
        """
        with self._hook.provide_gcp_credential_file_as_context():
            job = process.submit(beam_options)
        return self._remember(JobHandle.of(self._spec, job["id"], is_attached=False))

    def launch(self) -> JobHandle:
        """Launches the job from its Flex Template; this machine needs no Beam.

        Raises:
            LLMBeamError: Dataflow does not take it.
        """
        spec_uri = f"{self._spec.home_uri}spec.json"
        self._hook.write(spec_uri, self._spec.model_dump_json())
        job_id = self._hook.launch_flex_template(self._spec, spec_uri)
        return self._remember(JobHandle.of(self._spec, job_id, is_attached=False))

    def collect(self, job: JobHandle) -> dict[str, Any]:
        """Reads the report of a job that is done, and checks it against Dataflow's counters.

        Returns:
            The manifest.

        Raises:
            JobFailedError: There is no report.
        """
        report = json.loads(self._hook.read(job.report_uri))
        counted, read = self._hook.counts(job.id, running=False).rows, report["rows"]["read"]
        if counted != read:
            self._log.warning(
                "Dataflow counted %d rows, the report %d: the report is exact, Dataflow's counters are when no "
                "bundle was repeated.",
                counted,
                read,
            )
        if self._store is not None:
            self._store.delete(STORE_KEY)
        return manifest(report)

    def _end(self, job: DataflowJob) -> None:
        was_cancelled = job.state == "JOB_STATE_CANCELLING"
        self._log.warning(
            "Job %s of an earlier try %s; waiting for its end. Its answers are in the journal.",
            job.job_id,
            "is being cancelled" if was_cancelled else "was asked for something else: cancelling it",
        )
        if not was_cancelled:
            self._hook.cancel(job.job_id)
        deadline = time.monotonic() + self.CANCEL_SECONDS
        while not self._hook.get(job.job_id).is_over:
            if time.monotonic() > deadline:
                raise JobFailedError(
                    f"Job {job.job_id!r} of an earlier try did not end within {self.CANCEL_SECONDS:.0f} s of being "
                    "cancelled. It may still be running and billing; nothing else was submitted. A retry looks again."
                )
            time.sleep(5)

    def _remember(self, job: JobHandle) -> JobHandle:
        if self._store is not None:
            self._store.set(STORE_KEY, job.plain())
        return job
