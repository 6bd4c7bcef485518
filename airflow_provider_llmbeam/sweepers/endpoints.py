"""Removes endpoints that are past their expiry, and cancels abandoned jobs, of the named deployments alone."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

from airflow_provider_llmbeam.endpoints.platform import EndpointPlatform
from airflow_provider_llmbeam.endpoints.resource import Resource
from airflow_provider_llmbeam.endpoints.teardown import Keep, removal_round, remove
from airflow_provider_llmbeam.exceptions import StillBillingError
from airflow_provider_llmbeam.polling.poller import TaskLog
from airflow_provider_llmbeam.spec.deployment import DEPLOYMENT_LABEL
from airflow_provider_llmbeam.spec.endpoint.identity import ENDPOINT_LABEL
from airflow_provider_llmbeam.spec.remote_job import RemoteJob
from airflow_provider_llmbeam.sweepers.sweeper import Leftover, Reason, Sweep, SweepManifest


class JobService(Protocol):
    """The methods of `hooks.dataflow.DataflowJobHook` that a sweep uses."""

    location: str

    def active(self) -> list[RemoteJob]:
        """Lists the unfinished jobs of this package."""

    def cancel(self, job_id: str) -> None:
        """Requests the cancellation of a job."""


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


def is_abandoned(job: RemoteJob, due_ids: Collection[str], now: float, max_age_seconds: float | None) -> bool:
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
    due_ids: set[str] = set()

    def find_endpoints(platform: EndpointPlatform, sweep: Sweep) -> Iterator[Leftover]:
        by_key: dict[str, list[Resource]] = {}
        listed, models_error = platform.find(None)
        if models_error is not None:
            sweep.fail(str(models_error))
        for resource in listed:
            if resource.deployment in deployments:
                by_key.setdefault(resource.key or "", []).append(resource)
            else:
                sweep.manifest.foreign.append(resource.name)
        for key, resources in by_key.items():
            names = tuple(resource.name for resource in resources)
            if is_due(resources, now, older_than_seconds):
                due_ids.update(resource.id for resource in resources)
                yield Leftover(
                    names=names,
                    request=partial(removal_round, platform, key, log, keep=keep),
                    remove=partial(_remove, platform, key, gone_within_seconds, keep, log),
                )
            else:
                sweep.manifest.kept.extend(names)

    def find_jobs(service: JobService, sweep: Sweep) -> Iterator[Leftover]:
        for job in service.active():
            name = f"{service.location}/jobs/{job.job_id}"
            if job.deployment not in deployments:
                sweep.manifest.foreign.append(name)
            elif is_abandoned(job, due_ids, now, max_job_age_seconds):
                yield Leftover(
                    names=(name,),
                    is_job=True,
                    warning=f"Cancelling job {job.job_id!r}: its endpoint has expired or it is too old.",
                    remove=partial(service.cancel, job.job_id),
                    failure=f"Job {job.job_id!r} may still be billing:",
                )
            else:
                sweep.manifest.kept.append(name)

    # A run that is cleared during the sweep, which takes minutes, may provision an endpoint of the same key again.
    keep = partial(is_renewed, now=now, older_than_seconds=older_than_seconds)
    endpoints = [partial(find_endpoints, platform) for platform in platforms]
    jobs = [partial(find_jobs, service) for service in job_services]
    manifest = Sweep(log, dry_run=dry_run).run([*endpoints, *jobs])
    if manifest.foreign:
        log.log(
            logging.INFO,
            "Left alone, as it has no label %s=%s: %s.",
            DEPLOYMENT_LABEL,
            " or ".join(sorted(deployments)),
            ", ".join(manifest.foreign),
        )
    return manifest


def _remove(
    platform: EndpointPlatform, key: str, within_seconds: float, keep: Keep, log: TaskLog
) -> Reason | None:
    is_kept = False

    def note_kept(resources: Sequence[Resource]) -> bool:
        nonlocal is_kept
        is_kept = keep(resources)
        return is_kept

    if left := remove(platform, key, within_seconds=within_seconds, log=log, keep=note_kept):
        raise StillBillingError(left)
    return "kept" if is_kept else None
