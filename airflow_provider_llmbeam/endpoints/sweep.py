"""Removes what runs have left behind: endpoints, jobs on Dataflow, batch-inference jobs and uploaded files.

Only what belongs to the named deployments is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Literal, Protocol

from airflow_provider_llmbeam.endpoints.platform import EndpointPlatform
from airflow_provider_llmbeam.endpoints.resource import Resource
from airflow_provider_llmbeam.endpoints.teardown import removal_round, remove
from airflow_provider_llmbeam.exceptions import LLMBeamError, StillBillingError
from airflow_provider_llmbeam.polling.poller import TaskLog
from airflow_provider_llmbeam.providers.batch import BatchJob, BatchProvider, UploadedFile
from airflow_provider_llmbeam.providers.errors import ApiNotFoundError
from airflow_provider_llmbeam.spec.endpoint.identity import ENDPOINT_LABEL
from airflow_provider_llmbeam.spec.fields.names import DEPLOYMENT_LABEL
from airflow_provider_llmbeam.spec.identity import deployment_prefix
from airflow_provider_llmbeam.spec.remote_job import RemoteJob

#: What a sweep does with something that it finds: the list of the manifest that it is added to.
Fate = Literal["cancelled", "deleted", "kept", "foreign"]
#: Context manager that collects an error, after the beginning of its message.
Collect = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class SweepManifest:
    """Result of a sweep. With `dry_run` the first two lists have what is due.

    Attributes:
        cancelled: Names of cancelled jobs; those of batch inference are deleted by a later sweep, once they have
            ended.
        deleted: Names of what was deleted; of OpenAI, of batches whose result files were deleted.
        failed: Sentences about what could not be cancelled, deleted or listed.
        kept: Names of what is not due.
        foreign: Names of endpoints and jobs of other deployments, which are left alone.
        dry_run: Whether nothing was changed.
    """

    cancelled: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    dry_run: bool = False

    def plain(self) -> dict[str, Any]:
        """Returns the manifest as plain JSON."""
        return asdict(self)

    def add(self, names: Iterable[str], fate: Fate) -> None:
        """Adds names to the list of their fate."""
        getattr(self, fate).extend(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that a run has made, and what a sweep does with it.

    Attributes:
        names: Its names in the manifest.
        fate: Its fate, if nothing changes meanwhile.
        notice: Line for the log when it is removed; empty if the removal writes its own.
        failure: Beginning of the message if it cannot be removed; empty if the error says it all.
        remove: Removes it, or requests that; `None` if it is not due.
        wait: Waits until it is removed, and returns its fate; `None` if there is nothing to wait for.
    """

    names: tuple[str, ...]
    fate: Fate
    notice: str = ""
    failure: str = ""
    remove: Callable[[], object] | None = None
    wait: Callable[[], Fate] | None = None


class Sweepable(Protocol):
    """Things of one kind in one place, which can be left behind."""

    def find(self, collect: Collect) -> Sequence[Finding]:
        """Lists what runs of this package have made, and decides what of it is due."""


def sweep(
    things: Iterable[Sweepable], *, deployments: Collection[str], dry_run: bool, log: TaskLog
) -> SweepManifest:
    """Removes what is due; a failure does not stop the rest.

    Args:
        things: What is swept; each is listed after those before it.
        deployments: Airflow deployments to which it belongs, for the log.
        dry_run: Whether to change nothing.
        log: Receives one line for each change and each failure.
    """
    manifest = SweepManifest(dry_run=dry_run)
    collect = partial(collect_errors, manifest.failed, log)
    found: list[Finding] = []
    for thing in things:
        with collect(""):
            found += thing.find(collect)
    for each in found:
        if dry_run or each.remove is None:
            manifest.add(each.names, each.fate)
    if manifest.foreign:
        names = " or ".join(sorted(deployments))
        foreign = ", ".join(manifest.foreign)
        log.info("Left alone, as it has no label %s=%s: %s.", DEPLOYMENT_LABEL, names, foreign)
    if dry_run:
        return manifest
    for each in found:
        if each.remove is not None:
            if each.notice:
                log.warning("%s", each.notice)
            with collect(each.failure), suppress(ApiNotFoundError):  # somebody has deleted it meanwhile
                each.remove()
                if each.wait is None:
                    manifest.add(each.names, each.fate)
    # Every removal is requested before the first is waited for: each endpoint bills until its removal.
    for each in found:
        if each.wait is not None:
            with collect(each.failure):
                manifest.add(each.names, each.wait())
    return manifest


@contextmanager
def collect_errors(failed: list[str], log: TaskLog, beginning: str = "") -> Iterator[None]:
    """Adds the message of an error to a list and to the log, and goes on: the rest bills until it is removed."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - see above
        message = str(error) if isinstance(error, LLMBeamError) else f"{type(error).__name__}: {error}"
        failed.append(f"{beginning}: {message}" if beginning else message)
        log.error("%s", failed[-1])


@dataclass(kw_only=True)
class Endpoints:
    """Endpoints, services and models of one platform in one location, which are due when they have expired.

    Attributes:
        platform: The platform.
        deployments: Airflow deployments whose resources are swept.
        expired_before: Time before which they have to expire, in seconds of the Unix epoch.
        gone_within_seconds: Time limit for the removal of one endpoint, in seconds.
        log: Receives one line for each request.
        due_ids: IDs of the endpoints and services that are due, once they were listed.
    """

    platform: EndpointPlatform
    deployments: Collection[str]
    expired_before: float
    gone_within_seconds: float
    log: TaskLog
    due_ids: set[str] = field(default_factory=set)

    def find(self, collect: Collect) -> list[Finding]:
        """Lists the resources, those of one endpoint as one finding."""
        listed, models_error = self.platform.find(None)
        if models_error is not None:
            with collect(""):
                raise models_error
        found, by_key = [], dict[str, list[Resource]]()
        for resource in listed:
            if resource.deployment in self.deployments:
                by_key.setdefault(resource.key or "", []).append(resource)
            else:
                found.append(Finding(names=(resource.name,), fate="foreign"))
        for key, resources in by_key.items():
            names = tuple(resource.name for resource in resources)
            if is_due(resources, self.expired_before):
                self.due_ids.update(resource.id for resource in resources)
                request, wait = partial(self._request_removal, key), partial(self._remove, key)
                found.append(Finding(names=names, fate="deleted", remove=request, wait=wait))
            else:
                found.append(Finding(names=names, fate="kept"))
        return found

    def _request_removal(self, key: str) -> None:
        with collect_errors([], self.log):  # `_remove` requests it again
            removal_round(self.platform, key, self.log, keep=self._is_renewed)

    def _remove(self, key: str) -> Fate:
        is_kept = False

        def keep(found: Sequence[Resource]) -> bool:
            nonlocal is_kept
            is_kept = self._is_renewed(found)
            return is_kept

        if left := remove(self.platform, key, within_seconds=self.gone_within_seconds, log=self.log, keep=keep):
            raise StillBillingError(left)
        return "kept" if is_kept else "deleted"

    def _is_renewed(self, resources: Sequence[Resource]) -> bool:
        # A run that is cleared during the sweep, which takes minutes, may provision an endpoint of the same key.
        expiries = [resource.expires_at for resource in resources if resource.kind != "model"]
        return any(at is not None and at >= self.expired_before for at in expiries)


def is_due(resources: Sequence[Resource], expired_before: float) -> bool:
    """Whether the resources of an endpoint may be removed: when the last of them has expired.

    Args:
        resources: Resources of one endpoint in one location.
        expired_before: Time before which they have to expire, in seconds of the Unix epoch.
    """
    # A model keeps the expiry of the try that uploaded it; each try renews that of the endpoint.
    deciding = [resource for resource in resources if resource.kind != "model"] or list(resources)
    expiries = [resource.expires_at for resource in deciding]
    return all(at is not None and at < expired_before for at in expiries)


class JobService(Protocol):
    """The methods of `hooks.dataflow.DataflowJobHook` that a sweep uses."""

    location: str

    def active(self) -> list[RemoteJob]:
        """Lists the unfinished jobs of this package."""

    def cancel(self, job_id: str) -> None:
        """Requests the cancellation of a job."""


@dataclass(frozen=True, kw_only=True)
class DataflowJobs:
    """Unfinished jobs of one region, which are due with their endpoint, or above a maximum age.

    Attributes:
        service: The hook of the region.
        endpoints: Endpoints that the jobs may use.
        deployments: Airflow deployments whose jobs are swept.
        now: Seconds of the Unix epoch.
        max_age_seconds: Maximum age of a job, in seconds; `None` for no limit.
    """

    service: JobService
    endpoints: Sequence[Endpoints]
    deployments: Collection[str]
    now: float
    max_age_seconds: float | None

    def find(self, collect: Collect) -> list[Finding]:
        """Lists the jobs."""
        due_ids = frozenset[str]().union(*(each.due_ids for each in self.endpoints))
        return [self._judge(job, due_ids) for job in self.service.active()]

    def _judge(self, job: RemoteJob, due_ids: frozenset[str]) -> Finding:
        names = (f"{self.service.location}/jobs/{job.job_id}",)
        if job.deployment not in self.deployments:
            return Finding(names=names, fate="foreign")
        if not is_abandoned(job, due_ids, self.now, self.max_age_seconds):
            return Finding(names=names, fate="kept")
        return Finding(
            names=names,
            fate="cancelled",
            notice=f"Cancelling job {job.job_id!r}: its endpoint has expired or it is too old.",
            failure=f"Job {job.job_id!r} may still be billing",
            remove=partial(self.service.cancel, job.job_id),
        )


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


@dataclass(frozen=True, kw_only=True)
class BatchInferenceJobs:
    """Batch-inference jobs of a deployment at a provider, and its uploaded files, which are due at an age.

    Attributes:
        provider: The batch-inference API with the jobs.
        deployment: The Airflow deployment.
        made_before: Unix time before which they have to be created, or have ended. Its distance from now is longer
            than the longest `inference.max_batch_wait_seconds` of their runs.
    """

    provider: BatchProvider
    deployment: str
    made_before: float

    def find(self, collect: Collect) -> list[Finding]:
        """Lists the jobs and the uploaded files."""
        prefix, whose = deployment_prefix(self.deployment), f"of the deployment {self.deployment!r}"
        uploads: Sequence[UploadedFile] = ()
        jobs: Sequence[BatchJob] | None = None
        deletable: Sequence[BatchJob] = ()
        # Before the jobs: the job of a file that is uploaded meanwhile would not be in their list.
        with collect(f"The uploaded files {whose} could not be listed"):
            uploads = self.provider.uploads(prefix)
        with collect(f"The batch-inference jobs {whose} may still bill, and could not be listed"):
            jobs = self.provider.find(prefix)
        if jobs is None:  # of a file alone, nobody knows whether it is needed
            return []
        fates = [(job, batch_job_fate(job, self.made_before)) for job in jobs]
        with collect(f"The result files {whose} could not be listed"):
            deletable = self.provider.deletable([job for job, fate in fates if fate == "deleted"])
        needed = {job.display_name for job, fate in fates if fate != "deleted"}
        return [
            *(Finding(names=(job.name,), fate="kept") for job, fate in fates if fate == "kept"),
            *(self._cancellation(job) for job, fate in fates if fate == "cancelled"),
            *map(self._deletion, deletable),
            *(self._judge_upload(file, needed) for file in uploads),
        ]

    def _cancellation(self, job: BatchJob) -> Finding:
        what = f"Batch-inference job {job.display_name} ({job.name})"
        return Finding(
            names=(job.name,),
            fate="cancelled",
            notice=f"{what} has not ended and is forgotten: it is cancelled.",
            failure=f"{what} may still bill",
            remove=partial(self.provider.cancel, job.name),
        )

    def _deletion(self, job: BatchJob) -> Finding:
        what = f"Batch-inference job {job.display_name} ({job.name})"
        return Finding(
            names=(job.name,),
            fate="deleted",
            notice=f"{what} is forgotten: it is deleted.",
            failure=f"{what} could not be deleted",
            remove=partial(self.provider.delete, job),
        )

    def _judge_upload(self, file: UploadedFile, needed: Collection[str]) -> Finding:
        if not 0 < file.created_at < self.made_before or file.display_name in needed:
            return Finding(names=(file.name,), fate="kept")
        what = f"The uploaded file of {file.display_name} ({file.name})"
        return Finding(
            names=(file.name,),
            fate="deleted",
            notice=f"{what} is forgotten: it is deleted.",
            failure=f"{what} could not be deleted",
            remove=partial(self.provider.delete_upload, file.name),
        )


def batch_job_fate(job: BatchJob, made_before: float) -> Fate:
    """Returns what a sweep does with a batch-inference job.

    Its age is counted from its creation until it has ended, and from its end afterwards: its results are paid for,
    and a run that was interrupted may still harvest them. An age that is not known is never enough.

    Args:
        job: The job.
        made_before: Unix time before which it has to be created, or have ended.
    """
    since = job.ended_at or job.created_at
    if not 0 < since < made_before or job.phase == "cancelling":
        return "kept"
    return "deleted" if job.has_ended else "cancelled"
