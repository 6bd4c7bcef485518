"""Removes endpoints that are past their expiry, and cancels abandoned jobs, of the named deployments alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Protocol

from airflow_provider_llmbeam.endpoints.platform import EndpointPlatform
from airflow_provider_llmbeam.endpoints.resource import Resource
from airflow_provider_llmbeam.endpoints.teardown import Keep, removal_round, remove
from airflow_provider_llmbeam.exceptions import LLMBeamError
from airflow_provider_llmbeam.polling.task_log import TaskLog
from airflow_provider_llmbeam.spec.deployment import DEPLOYMENT_LABEL
from airflow_provider_llmbeam.spec.endpoint.identity import ENDPOINT_LABEL
from airflow_provider_llmbeam.spec.remote_job import RemoteJob


class JobService(Protocol):
    """The methods of `hooks.dataflow.DataflowJobHook` that a sweep uses."""

    location: str

    def active(self) -> list[RemoteJob]:
        """Lists the unfinished jobs of this package."""

    def cancel(self, job_id: str) -> None:
        """Requests the cancellation of a job."""


@dataclass(frozen=True, slots=True)
class SweepManifest:
    """Result of a sweep.

    Attributes:
        deleted: Names of deleted resources and cancelled jobs; with `dry_run`, of those that are due.
        failed: Sentences about what could not be removed or listed.
        kept: Names of resources and jobs that are not due.
        foreign: Names of resources and jobs of other deployments, which are left alone.
        dry_run: Whether nothing was changed.
    """

    deleted: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    dry_run: bool = False

    def plain(self) -> dict[str, Any]:
        """Returns the manifest as plain JSON."""
        return asdict(self)


def is_renewed(resources: Sequence[Resource], now: float, older_than_seconds: float) -> bool:
    """Whether a later try has provisioned the endpoint again; the arguments are those of `is_due`."""
    expiries = [resource.expires_at for resource in resources if resource.kind != "model"]
    return any(at is not None and at + older_than_seconds >= now for at in expiries)


def is_due(resources: Sequence[Resource], now: float, older_than_seconds: float) -> bool:
    """Whether the resources of an endpoint may be removed: when the last of them has expired.

    Args:
        resources: Resources of one endpoint in one location.
        now: Seconds of the Unix epoch.
        older_than_seconds: Time after the expiry, in seconds.
    """
    # A model keeps the expiry of the try that uploaded it; each try renews that of the endpoint.
    deciding = [resource for resource in resources if resource.kind != "model"] or list(resources)
    expiries = [resource.expires_at for resource in deciding]
    return all(at is not None and at + older_than_seconds < now for at in expiries)


def is_abandoned(job: RemoteJob, due_ids: frozenset[str], now: float, max_age_seconds: float | None) -> bool:
    """Whether a job may be cancelled: its endpoint is due, or it exceeds the maximum age.

    Args:
        job: Unfinished job.
        due_ids: Ids of the endpoints and services that are due.
        now: Seconds of the Unix epoch.
        max_age_seconds: Maximum age of a job, in seconds; `None` for no limit.
    """
    if job.labels.get(ENDPOINT_LABEL) in due_ids:
        return True
    if max_age_seconds is None or job.created_at is None:
        return False
    return now - job.created_at.timestamp() > max_age_seconds


def sweep(
    platforms: Iterable[EndpointPlatform],
    job_services: Iterable[JobService],
    *,
    deployments: Collection[str],
    now: float,
    dry_run: bool,
    older_than_seconds: float,
    max_job_age_seconds: float | None,
    gone_within_seconds: float,
    log: TaskLog,
) -> SweepManifest:
    """Removes what is due; a failure does not stop the rest.

    Args:
        platforms: Platforms, one per location and type of endpoint.
        job_services: Services for jobs, one per location.
        deployments: Airflow deployments whose resources and jobs are swept.
        now: Seconds of the Unix epoch.
        dry_run: Whether to change nothing.
        older_than_seconds: Time after the expiry, in seconds.
        max_job_age_seconds: Maximum age of a Dataflow job, in seconds; `None` for no limit.
        gone_within_seconds: Time limit for the removal of one endpoint, in seconds.
        log: Receives one line for each request.
    """
    manifest = SweepManifest(dry_run=dry_run)
    due: list[tuple[EndpointPlatform, str, list[Resource]]] = []
    for platform in platforms:
        _guarded(
            manifest,
            log,
            lambda platform=platform: due.extend(  # type: ignore[misc]
                _due(platform, deployments, now, older_than_seconds, manifest, log)
            ),
        )
    due_ids = frozenset(resource.id for _, _, resources in due for resource in resources)
    for service in job_services:
        _guarded(
            manifest,
            log,
            lambda service=service: _sweep_jobs(  # type: ignore[misc]
                service, deployments, due_ids, now, max_job_age_seconds, manifest, log
            ),
        )
    if manifest.foreign:
        log.log(
            logging.INFO,
            "Left alone, as it has no label %s=%s: %s.",
            DEPLOYMENT_LABEL,
            " or ".join(sorted(deployments)),
            ", ".join(manifest.foreign),
        )
    if dry_run:
        manifest.deleted.extend(resource.name for _, _, resources in due for resource in resources)
        return manifest
    # A run that is cleared during the sweep, which takes minutes, may provision an endpoint of the same key again.
    keep = partial(is_renewed, now=now, older_than_seconds=older_than_seconds)
    # Every removal is requested before the first is waited for: each endpoint bills until its removal.
    for platform, key, _ in due:
        _guarded(
            None,
            log,
            lambda platform=platform, key=key: removal_round(platform, key, log, keep=keep),  # type: ignore[misc]
        )
    for platform, key, resources in due:
        _guarded(
            manifest,
            log,
            lambda platform=platform, key=key, resources=resources: _remove(  # type: ignore[misc]
                platform, key, resources, gone_within_seconds, keep, manifest, log
            ),
        )
    return manifest


def _due(
    platform: EndpointPlatform,
    deployments: Collection[str],
    now: float,
    older_than_seconds: float,
    manifest: SweepManifest,
    log: TaskLog,
) -> list[tuple[EndpointPlatform, str, list[Resource]]]:
    by_key: dict[str, list[Resource]] = {}
    listed, models_error = platform.find(None)
    if models_error is not None:
        manifest.failed.append(str(models_error))
        log.log(logging.ERROR, "%s", models_error)
    for resource in listed:
        if resource.deployment not in deployments:
            manifest.foreign.append(resource.name)
            continue
        by_key.setdefault(resource.key or "", []).append(resource)
    found = []
    for key, resources in by_key.items():
        if is_due(resources, now, older_than_seconds):
            found.append((platform, key, resources))
        else:
            manifest.kept.extend(resource.name for resource in resources)
    return found


def _remove(
    platform: EndpointPlatform,
    key: str,
    resources: list[Resource],
    within_seconds: float,
    keep: Keep,
    manifest: SweepManifest,
    log: TaskLog,
) -> None:
    is_kept = False

    def keep_renewed(found: Sequence[Resource]) -> bool:
        nonlocal is_kept
        is_kept = keep(found)
        return is_kept

    left = remove(platform, key, within_seconds=within_seconds, log=log, keep=keep_renewed)
    if left:
        manifest.failed.append(left)
        log.log(logging.ERROR, "%s", left)
    else:
        (manifest.kept if is_kept else manifest.deleted).extend(resource.name for resource in resources)


def _sweep_jobs(
    service: JobService,
    deployments: Collection[str],
    due_ids: frozenset[str],
    now: float,
    max_age_seconds: float | None,
    manifest: SweepManifest,
    log: TaskLog,
) -> None:
    for job in service.active():
        name = f"{service.location}/jobs/{job.job_id}"
        if job.deployment not in deployments:
            manifest.foreign.append(name)
            continue
        if not is_abandoned(job, due_ids, now, max_age_seconds):
            manifest.kept.append(name)
            continue
        if not manifest.dry_run:
            log.log(logging.WARNING, "Cancelling job %r: its endpoint has expired or it is too old.", job.job_id)
            try:
                service.cancel(job.job_id)
            except LLMBeamError as error:
                manifest.failed.append(f"Job {job.job_id!r} may still be billing: {error}")
                continue
        manifest.deleted.append(name)


def _guarded(manifest: SweepManifest | None, log: TaskLog, work: Callable[[], object]) -> None:
    try:
        work()
    except Exception as error:  # noqa: BLE001 - the rest bills until it is removed
        said = str(error) if isinstance(error, LLMBeamError) else f"{type(error).__name__}: {error}"
        log.log(logging.ERROR, "%s", said)
        if manifest is not None:
            manifest.failed.append(said)
