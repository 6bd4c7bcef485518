"""The record of a task's job elsewhere, and the client of the service that runs it: Dataflow or Flink."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

from airflow_provider_llmbeam.spec.identity import progress_prefix, spec_digest
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.counts import Counts
from airflow_provider_llmbeam.spec.remote_job import RemoteJob, flink_cancel_command
from airflow_provider_llmbeam.spec.runner import DataflowRunner, DetachedRunner, FlinkRunner

if TYPE_CHECKING:
    from airflow_provider_llmbeam.jobs.process import JobProcess


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
        progress_prefix: Beginning of the addresses of the counts that the workers write.
        stop_uri: File whose existence ends the job.
        report_uri: Address of the future report.
        skipped_uri: Address of the report of a job that is skipped, since its source has no rows.
        failed_html_uri: Address of the page of a job that fails since too many of its rows do.
        launch_error_uri: Address of the error of the launcher of a Flex Template; empty without one.
        cancel_on_kill: Whether the job is cancelled when its task is killed.
        is_attached: Whether an earlier try submitted the job.
        kms_key_name: Key of Cloud KMS of the job; `None` for none.
    """

    id: str
    project: str
    location: str
    name: str
    rest_url: str
    digest: str
    journal_uri: str
    progress_prefix: str
    stop_uri: str
    report_uri: str
    skipped_uri: str
    failed_html_uri: str
    launch_error_uri: str
    cancel_on_kill: bool
    is_attached: bool
    kms_key_name: str | None = None

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
            progress_prefix=progress_prefix(spec),
            stop_uri=spec.paths.stop_uri,
            report_uri=spec.paths.report_uri,
            skipped_uri=spec.paths.skipped_uri,
            failed_html_uri=spec.paths.failed_html_uri,
            launch_error_uri=spec.paths.launch_error_uri if getattr(runner, "flex_template", None) else "",
            cancel_on_kill=runner.cancel_on_kill,
            is_attached=is_attached,
            kms_key_name=spec.kms_key_name,
        )

    @property
    def service(self) -> str:
        """Name of the service, for messages."""
        return "Flink" if self.rest_url else "Dataflow"

    @property
    def place(self) -> tuple[str, str, str]:
        """Cluster, or project and region, where the job is found."""
        return self.rest_url, self.project, self.location

    @property
    def cancel_command(self) -> str:
        """Shell command that cancels the job."""
        if self.rest_url:
            return flink_cancel_command(self.rest_url, self.id)
        return f"gcloud dataflow jobs cancel {self.id} --region={self.location} --project={self.project}"

    def find_command(self, identity: str) -> str:
        """Returns the shell command that lists the jobs of an identity, see `spec.identity`, at this place."""
        if self.rest_url:
            return f"curl '{self.rest_url}/jobs/overview', for names that begin with {identity!r}"
        return (
            f"gcloud dataflow jobs list --status=active '--filter=name:{identity}-*' "
            f"--region={self.location} --project={self.project}"
        )

    def plain(self) -> dict[str, Any]:
        """Returns the record as plain data; `SubmittedJob(**plain)` restores it."""
        return asdict(self)


class Files(Protocol):
    """A client of a filesystem: `hooks.storage.StorageHook`, or Airflow's object storage."""

    def exists(self, uri: str) -> bool:
        """Returns whether there is a file."""

    def read(self, uri: str) -> str:
        """Reads a text file."""

    def list(self, prefix: str) -> list[str]:
        """Returns the addresses of the files that begin with a prefix, whose last part is that of a name."""

    def write(self, uri: str, content: str | bytes, within_seconds: float | None = None) -> None:
        """Writes a file."""

    def delete(self, uri: str) -> None:
        """Deletes a file."""


class JobClient(Protocol):
    """Client of a service that runs jobs; every method raises a `CloudError` if it refuses or does not answer."""

    def find(self, identity: str, *, active_only: bool = False) -> Sequence[RemoteJob]:
        """Returns the jobs of an identity, see `spec.identity`: those of every try of one task, newest first."""

    def get(self, job_id: str, within_seconds: float | None = None) -> RemoteJob:
        """Returns a job."""

    def check(self, spec: JobSpec) -> None:
        """Checks what would fail later, or with less of a reason, in the job."""

    def submit(self, spec: JobSpec, start: Callable[[], JobProcess]) -> str:
        """Submits a job, and returns its ID.

        Args:
            spec: The job.
            start: Makes the process that submits it, and fails if the task was killed: called as late as possible.
        """

    def cancel(self, job_id: str) -> None:
        """Requests the cancellation of a job; one that has ended is left unchanged."""

    def counts(self, job_id: str, *, running: bool) -> Counts:
        """Returns the counters of a job."""

    def error_messages(self, job_id: str) -> Sequence[str]:
        """Returns the error messages of a job, the oldest first."""

    def files(self, uri: str) -> Files:
        """Returns the client of the filesystem of an address."""


def connect(job: SubmittedJob, gcp_conn_id: str, impersonation_chain: str | Sequence[str] | None) -> JobClient:
    """Returns the client of the service of a job.

    Args:
        job: The job, of which only the place and the key matter.
        gcp_conn_id: Connection of type Google Cloud; on Flink, for files on Cloud Storage.
        impersonation_chain: Service account to impersonate on Dataflow, or a chain of them.
    """
    # Imported here, so that a Dag file loads no client.
    if job.rest_url:
        from airflow_provider_llmbeam.jobs.flink import FlinkClient

        return FlinkClient(job, gcp_conn_id)
    from airflow_provider_llmbeam.jobs.dataflow import DataflowClient

    return DataflowClient(
        job.location, job.project or None, gcp_conn_id, impersonation_chain, kms_key_name=job.kms_key_name
    )
