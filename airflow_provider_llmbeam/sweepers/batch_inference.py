"""Cancels batch-inference jobs that nobody harvests, and deletes what they leave at the provider."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from airflow_provider_llmbeam.polling.poller import TaskLog
from airflow_provider_llmbeam.providers.batch import BatchJob, BatchProvider, UploadedFile
from airflow_provider_llmbeam.providers.errors import ApiNotFoundError
from airflow_provider_llmbeam.spec.job.display_name import deployment_prefix
from airflow_provider_llmbeam.sweepers.sweeper import Leftover, Reason, Sweep, SweepManifest


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
    log: TaskLog,
) -> SweepManifest:
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
    find = partial(_find, provider, now=now, older_than_seconds=older_than_seconds)
    return Sweep(log, dry_run=dry_run).run(partial(find, name) for name in sorted(deployments))


def _find(
    provider: BatchProvider, deployment: str, sweep: Sweep, *, now: float, older_than_seconds: float
) -> Iterator[Leftover]:
    prefix, whose = deployment_prefix(deployment), f"of the deployment {deployment!r}"
    uploads: list[UploadedFile] = []
    jobs: list[BatchJob] | None = None
    deletable: list[BatchJob] = []
    # Before the jobs: the job of a file that is uploaded meanwhile would not be in their list.
    with sweep.collect_errors(f"The uploaded files {whose} could not be listed:"):
        uploads = provider.uploads(prefix)
    with sweep.collect_errors(f"The batch-inference jobs {whose} may still bill, and could not be listed:"):
        jobs = provider.find(prefix)
    if jobs is None:  # of a file alone, nobody knows whether it is needed
        return
    found = due(jobs, uploads, now, older_than_seconds)
    sweep.manifest.kept.extend(found.kept)
    for job in found.cancel:
        title = f"Batch-inference job {job.display_name} ({job.name})"
        yield Leftover(
            names=(job.name,),
            is_job=True,
            warning=f"{title} has not ended and is forgotten: it is cancelled.",
            remove=partial(_cancel, provider, job.name),
            failure=f"{title} may still bill:",
        )
    with sweep.collect_errors(f"The result files {whose} could not be listed:"):
        deletable = provider.deletable(found.delete)
    for job in deletable:
        yield _deletion(f"Batch-inference job {job.display_name}", job.name, partial(provider.delete, job))
    for file in found.delete_uploads:
        title = f"The uploaded file of {file.display_name}"
        yield _deletion(title, file.name, partial(provider.delete_upload, file.name))


def _deletion(title: str, name: str, delete: Callable[[], None]) -> Leftover:
    title = f"{title} ({name})"
    return Leftover(
        names=(name,),
        warning=f"{title} is forgotten: it is deleted.",
        remove=delete,
        failure=f"{title} could not be deleted:",
    )


def _cancel(provider: BatchProvider, name: str) -> Reason | None:
    try:
        provider.cancel(name)
    except ApiNotFoundError:
        return "gone"
    return None
