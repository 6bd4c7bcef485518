"""Cancels batch-inference jobs that nobody harvests, and deletes what they leave at the provider."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TypeVar

from airflow_provider_llmbeam.exceptions import LLMBeamError
from airflow_provider_llmbeam.providers.batch_client import BatchProvider
from airflow_provider_llmbeam.providers.batch_job import BatchJob, UploadedFile
from airflow_provider_llmbeam.providers.errors import BatchNotFoundError
from airflow_provider_llmbeam.spec.job.display_name import deployment_prefix

T = TypeVar("T")


class _Log(Protocol):
    def warning(self, event: str, /, *args: Any) -> Any: ...

    def error(self, event: str, /, *args: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class BatchSweepManifest:
    """Result of a sweep. With `dry_run` the first two lists have what is due.

    Attributes:
        cancelled: Names of cancelled jobs. They are deleted by a later sweep, once they have ended.
        deleted: Names of deleted jobs and files; of OpenAI, of batches whose result files were deleted.
        failed: Sentences about what could not be cancelled, deleted or listed.
        kept: Names of jobs and files that are not due.
        dry_run: Whether nothing was changed.
    """

    cancelled: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    dry_run: bool = False

    def plain(self) -> dict[str, Any]:
        """Returns the manifest as plain JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """What a sweep does with the jobs and files of a deployment.

    Attributes:
        cancel: Jobs to cancel.
        delete: Ended jobs to delete.
        delete_uploads: Uploaded files to delete.
        kept: Names of the other jobs and files.
    """

    cancel: tuple[BatchJob, ...]
    delete: tuple[BatchJob, ...]
    delete_uploads: tuple[UploadedFile, ...]
    kept: tuple[str, ...]


def due(jobs: Iterable[BatchJob], uploads: Iterable[UploadedFile], now: float, older_than_seconds: float) -> Due:
    """Returns what is due of the jobs and uploaded files of a deployment.

    The age of a job is counted from its creation until it has ended, and from its end afterwards: its results are
    paid for, and a run that was interrupted may still harvest them. An age that is not known is never enough.

    Args:
        jobs: All jobs of the deployment.
        uploads: Its uploaded files.
        now: Unix time.
        older_than_seconds: Age above which a job or a file is due, in seconds.
    """
    cancel: list[BatchJob] = []
    delete: list[BatchJob] = []
    kept: list[BatchJob] = []
    for job in jobs:
        since = job.ended_at or job.created_at
        if not 0 < since < now - older_than_seconds or job.phase == "cancelling":
            kept.append(job)
        else:
            (delete if job.has_ended else cancel).append(job)
    needed = {job.display_name for job in (*cancel, *kept)}
    delete_uploads: list[UploadedFile] = []
    kept_uploads: list[UploadedFile] = []
    for file in uploads:
        is_due = 0 < file.created_at < now - older_than_seconds and file.display_name not in needed
        (delete_uploads if is_due else kept_uploads).append(file)
    return Due(
        cancel=tuple(cancel),
        delete=tuple(delete),
        delete_uploads=tuple(delete_uploads),
        kept=(*(job.name for job in kept), *(file.name for file in kept_uploads)),
    )


def sweep(
    provider: BatchProvider,
    *,
    deployments: Collection[str],
    now: float,
    dry_run: bool,
    older_than_seconds: float,
    log: _Log,
) -> BatchSweepManifest:
    """Cancels and deletes what is due; a failure does not stop the rest.

    Args:
        provider: The batch-inference API with the jobs.
        deployments: Airflow deployments whose jobs and files are swept.
        now: Unix time.
        dry_run: Whether to change nothing.
        older_than_seconds: Age above which a job or a file is due, in seconds, see `due`. Longer than the longest
            `inference.max_batch_wait_seconds` of their runs.
        log: Receives one line for each change and each failure.
    """
    work = _Sweep(provider, BatchSweepManifest(dry_run=dry_run), log)
    for deployment in sorted(deployments):
        work.run(deployment, now, older_than_seconds)
    return work.manifest


class _Sweep:
    """One sweep of a provider."""

    def __init__(self, provider: BatchProvider, manifest: BatchSweepManifest, log: _Log) -> None:
        self._provider = provider
        self.manifest = manifest
        self._log = log

    def run(self, deployment: str, now: float, older_than_seconds: float) -> None:
        """Sweeps the jobs and files of a deployment."""
        prefix, whose = deployment_prefix(deployment), f"of the deployment {deployment!r}"
        # Before the jobs: the job of a file that is uploaded meanwhile would not be in their list.
        uploads = self._listed(lambda: self._provider.uploads(prefix), f"The uploaded files {whose}")
        jobs = self._listed(
            lambda: self._provider.find(prefix), f"The batch-inference jobs {whose} may still bill, and"
        )
        if jobs is None:  # of a file alone, nobody knows whether it is needed
            return
        found = due(jobs, uploads or (), now, older_than_seconds)
        self.manifest.kept.extend(found.kept)
        for job in found.cancel:
            self._cancel(job)
        delete = self._listed(lambda: self._provider.deletable(found.delete), f"The result files {whose}")
        for job in delete or ():
            what = f"Batch-inference job {job.display_name}"
            self._delete(job.name, what, functools.partial(self._provider.delete, job))
        for file in found.delete_uploads:
            what = f"The uploaded file of {file.display_name}"
            self._delete(file.name, what, functools.partial(self._provider.delete_upload, file.name))

    def _listed(self, work: Callable[[], Sequence[T]], what: str) -> Sequence[T] | None:
        try:
            return work()
        except LLMBeamError as error:
            self._fail(f"{what} could not be listed: {error}")
            return None

    def _cancel(self, job: BatchJob) -> None:
        what = f"Batch-inference job {job.display_name} ({job.name})"
        if not self.manifest.dry_run:
            self._log.warning("%s has not ended and is forgotten: it is cancelled.", what)
            try:
                self._provider.cancel(job.name)
            except BatchNotFoundError:
                return  # somebody has deleted it meanwhile
            except LLMBeamError as error:
                self._fail(f"{what} may still bill: {error}")
                return
        self.manifest.cancelled.append(job.name)

    def _delete(self, name: str, what: str, work: Callable[[], None]) -> None:
        if not self.manifest.dry_run:
            self._log.warning("%s (%s) is forgotten: it is deleted.", what, name)
            try:
                work()
            except LLMBeamError as error:
                self._fail(f"{what} ({name}) could not be deleted: {error}")
                return
        self.manifest.deleted.append(name)

    def _fail(self, sentence: str) -> None:
        self._log.error("%s", sentence)
        self.manifest.failed.append(sentence)
