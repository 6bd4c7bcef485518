"""Removes what outlived its expiry, whoever made it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from airflow_provider_llmbeam.endpoints.platform import EndpointPlatform
from airflow_provider_llmbeam.endpoints.resource import Resource
from airflow_provider_llmbeam.endpoints.teardown import removal_round, remove
from airflow_provider_llmbeam.exceptions import LLMBeamError
from airflow_provider_llmbeam.google_cloud.dataflow_job import DataflowJob
from airflow_provider_llmbeam.polling.task_log import TaskLog
from airflow_provider_llmbeam.spec.endpoint.identity import ENDPOINT_LABEL


class JobSite(Protocol):
    """What sweeping needs of `hooks.dataflow.DataflowJobHook`."""

    location: str

    def active(self) -> list[DataflowJob]:
        """Lists the jobs of ours that are not over."""

    def cancel(self, job_id: str) -> None:
        """Asks for the end of one."""


@dataclass(frozen=True, slots=True)
class SweepManifest:
    """What a sweep did.

    Attributes:
        deleted: Names of resources, and of jobs that were cancelled; with `dry_run` what would have been.
        failed: What could not be removed, or not be looked at, in sentences.
        kept: Names of ours that are not due yet.
        dry_run: Whether nothing was touched.
    """

    deleted: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    dry_run: bool = False

    def plain(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)


def is_due(parts: Sequence[Resource], now: float, older_than_seconds: float) -> bool:
    """Whether what belongs to one endpoint may be removed: once the last of it has expired.

    Args:
        parts: Of one endpoint in one location.
        now: Seconds of the Unix epoch.
        older_than_seconds: Beyond the expiry.
    """
    # A model keeps the expiry of the try that uploaded it; that of the endpoint is renewed by each try.
    deciding = [part for part in parts if part.kind != "model"] or list(parts)
    expiries = [part.expires_at for part in deciding]
    return all(at is not None and at + older_than_seconds < now for at in expiries)


def is_forgotten(job: DataflowJob, due_ids: frozenset[str], now: float, max_age_seconds: float | None) -> bool:
    """Whether nobody waits for a job any more: its endpoint is due, or it is older than any job should be.

    Args:
        job: That is not over.
        due_ids: Ids of endpoints and services that are due.
        now: Seconds of the Unix epoch.
        max_age_seconds: `None`: jobs may become as old as they like.
    """
    if job.labels.get(ENDPOINT_LABEL) in due_ids:
        return True
    if max_age_seconds is None or job.created_at is None:
        return False
    return now - job.created_at.timestamp() > max_age_seconds


def sweep(
    sites: Iterable[EndpointPlatform],
    jobs: Iterable[JobSite],
    *,
    now: float,
    dry_run: bool,
    older_than_seconds: float,
    max_job_age_seconds: float | None,
    gone_within_seconds: float,
    log: TaskLog,
) -> SweepManifest:
    """Removes what is due; one failure does not stop the rest.

    Args:
        sites: One per location and kind.
        jobs: One per location.
        now: Seconds of the Unix epoch.
        dry_run: Touches nothing.
        older_than_seconds: Beyond the expiry.
        max_job_age_seconds: Of a job on Dataflow; `None`: any.
        gone_within_seconds: For one endpoint to be gone.
        log: Receives what is done.
    """
    manifest = SweepManifest(dry_run=dry_run)
    due: list[tuple[EndpointPlatform, str, list[Resource]]] = []
    for site in sites:
        _guarded(manifest, log, lambda site=site: due.extend(_due(site, now, older_than_seconds, manifest)))  # type: ignore[misc]
    due_ids = frozenset(part.id for _, _, parts in due for part in parts)
    for one in jobs:
        _guarded(
            manifest,
            log,
            lambda one=one: _sweep_jobs(one, due_ids, now, max_job_age_seconds, manifest, log),  # type: ignore[misc]
        )
    if dry_run:
        manifest.deleted.extend(part.name for _, _, parts in due for part in parts)
        return manifest
    # All of it is asked for before any of it is waited for: each bills until then.
    for site, key, _ in due:
        _guarded(None, log, lambda site=site, key=key: removal_round(site, key, log))  # type: ignore[misc]
    for site, key, parts in due:
        _guarded(
            manifest,
            log,
            lambda site=site, key=key, parts=parts: _remove(  # type: ignore[misc]
                site, key, parts, gone_within_seconds, manifest, log
            ),
        )
    return manifest


def _due(
    site: EndpointPlatform, now: float, older_than_seconds: float, manifest: SweepManifest
) -> list[tuple[EndpointPlatform, str, list[Resource]]]:
    by_key: dict[str, list[Resource]] = {}
    for part in site.find(None):
        by_key.setdefault(part.key or "", []).append(part)
    found = []
    for key, parts in by_key.items():
        if is_due(parts, now, older_than_seconds):
            found.append((site, key, parts))
        else:
            manifest.kept.extend(part.name for part in parts)
    return found


def _remove(
    site: EndpointPlatform,
    key: str,
    parts: list[Resource],
    within_seconds: float,
    manifest: SweepManifest,
    log: TaskLog,
) -> None:
    left = remove(site, key, within_seconds=within_seconds, log=log)
    if left:
        manifest.failed.append(left)
        log.log(logging.ERROR, "%s", left)
    else:
        manifest.deleted.extend(part.name for part in parts)


def _sweep_jobs(
    jobs: JobSite,
    due_ids: frozenset[str],
    now: float,
    max_age_seconds: float | None,
    manifest: SweepManifest,
    log: TaskLog,
) -> None:
    for job in jobs.active():
        name = f"{jobs.location}/jobs/{job.job_id}"
        if not is_forgotten(job, due_ids, now, max_age_seconds):
            manifest.kept.append(name)
            continue
        if not manifest.dry_run:
            log.log(logging.WARNING, "Cancelling job %r, which nobody waits for.", job.job_id)
            try:
                jobs.cancel(job.job_id)
            except LLMBeamError as error:
                manifest.failed.append(f"Job {job.job_id!r} may still be billing: {error}")
                continue
        manifest.deleted.append(name)


def _guarded(manifest: SweepManifest | None, log: TaskLog, work: Callable[[], object]) -> None:
    try:
        work()
    except LLMBeamError as error:
        log.log(logging.ERROR, "%s", error)
        if manifest is not None:
            manifest.failed.append(str(error))
