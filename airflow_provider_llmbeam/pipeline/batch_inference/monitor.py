"""Submits, polls and cancels the batch-inference jobs of a job."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import IO

from airflow_provider_llmbeam.exceptions import JobRefusedError, JobSpecError
from airflow_provider_llmbeam.local_files import open_no_link
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.batch_inference.adopt import Adopt, Doubt, Intent, NotCreated, Prove, adopt
from airflow_provider_llmbeam.pipeline.batch_inference.decide import (
    MAX_POLL_SECONDS,
    MAX_SUBMITS,
    BatchPlan,
    Cancel,
    FileState,
    Finish,
    Submit,
    Wait,
    decide,
)
from airflow_provider_llmbeam.pipeline.batch_inference.harvest import has_key_of
from airflow_provider_llmbeam.pipeline.batch_inference.manifest import BatchManifest, RequestFile, write_manifest
from airflow_provider_llmbeam.providers.batch import BatchJob, BatchProvider, delete_uploads
from airflow_provider_llmbeam.providers.errors import (
    ApiError,
    ApiNotFoundError,
    ApiUnavailableError,
    BatchPendingError,
    BatchQuotaError,
    UncertainSubmitError,
)
from airflow_provider_llmbeam.spec.identity import display_name_prefix
from airflow_provider_llmbeam.spec.job import JobSpec

_log = logging.getLogger("llmbeam")

#: Longest wait for a provider that cannot be polled, in seconds. Its jobs go on meanwhile.
MAX_UNREACHABLE_SECONDS = 3600.0

#: Age from which a job that cannot be found has been deleted, in seconds; a new one may not be found at once.
SURE_SECONDS = 300.0
#: Waits before a job is looked for that may have been created, in seconds: a list may lag behind.
FIND_SECONDS = (1.0, 5.0, 15.0)

#: "Enqueued token limit reached for gpt-4o in organization org-…. Limit: 90,000 enqueued tokens. Please try again
#: once some in_progress batches have been completed." (github.com/openai/openai-python/issues/2084)
_LIMIT = re.compile(r"Limit: ([\d,]{1,20}) enqueued tokens")


class Monitor:
    """The batch-inference jobs of a job.

    Args:
        spec: The job.
        provider: The provider of the jobs.
        waits: Whether this process waits for them.
        clock: Unix time, in seconds.
        sleep: Waits, in seconds.

    Attributes:
        jobs: The newest job of each request file as of the last poll, by display name.
    """

    def __init__(
        self,
        spec: JobSpec,
        provider: BatchProvider,
        *,
        waits: bool,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._spec = spec
        self._provider = provider
        self._waits = waits
        self._clock = clock
        self._sleep = sleep
        self.jobs: dict[str, BatchJob] = {}
        self._emptied: set[str] = set()
        self._room: int | None = None
        self._room_for_tokens: int | None = None
        self._submits_later = False
        self._unreachable_since: float | None = None
        #: Whether the results of a job have the keys of a file, by the file and the name of the job.
        self._proofs: dict[str, dict[str, bool]] = {}
        #: Names of the jobs that may be of a submission without a reply, by the file.
        self._doubts: dict[str, tuple[str, ...]] = {}

    def attach(self, manifest: BatchManifest, plan: BatchPlan) -> None:
        """Finds the jobs of earlier tries; waits for a provider that does not answer, as long as there is time."""
        while True:
            try:
                self.jobs = self.find(manifest)
            except ApiUnavailableError as error:
                if self._clock() >= plan.switch_at(1.0):
                    raise
                _log.warning("%s Polling again in %.0f s.", error, MAX_POLL_SECONDS)
                self._wait(MAX_POLL_SECONDS)
            else:
                return

    def find(self, manifest: BatchManifest) -> dict[str, BatchJob]:
        """Returns the newest job of each file, without those of earlier runs whose results are deleted."""
        jobs = self._provider.find(display_name_prefix(self._spec))
        jobs = [job for job in jobs if job.display_name in manifest.files]
        # OpenAI's times are whole seconds.
        earlier = [job for job in jobs if job.has_ended and job.created_at < int(manifest.created_at)]
        # OpenAI lists a batch forever, also after its run has published and deleted the results.
        self._emptied = {job.name for job in earlier} - {job.name for job in self._provider.deletable(earlier)}
        listed = {job.name for job in jobs}
        recorded = [self._read_job(job) for job in manifest.jobs.values() if job.name not in listed]
        # Others may write to the manifest: a job is one of this run by the display name that its provider has.
        jobs += [job for job in recorded if job.display_name in manifest.files]
        found: dict[str, BatchJob] = {}
        for job in sorted(jobs, key=lambda job: job.created_at, reverse=True):
            if job.name in self._emptied:
                continue
            newest = found.setdefault(job.display_name, job)
            if job.name != newest.name and not job.has_ended:
                self._cancel_other(job, newest)
        if found:
            _log.info(
                "Found %d of %d batch-inference jobs, which were submitted before.",
                len(found),
                len(manifest.files),
            )
        return found

    def run(self, manifest: BatchManifest, plan: BatchPlan) -> BatchManifest:
        """Submits, polls and cancels, until the rest is sent online.

        Args:
            manifest: State of the batch inference.
            plan: What is known of its time.

        Returns:
            The state afterwards, which is saved.

        Raises:
            ApiError: The jobs could not be polled for an hour, or a job may have been created and is not found.
            JobRefusedError: The provider refuses the first job.
            BatchPendingError: The jobs have not ended, and this process does not wait for them.
        """
        self._manifest = manifest
        self._count_over_limit()
        history, said = manifest.history, ""
        while True:
            self._settle_doubts()
            files = [
                FileState(
                    display_name=name,
                    rows=file.rows,
                    job=self.jobs.get(name),
                    submits=self._submits(name),
                    is_in_doubt=name in self._manifest.intents,
                )
                for name, file in manifest.files.items()
            ]
            rooms = [room for room in (self._room, self._room_for_tokens) if room is not None]
            before, room = history, min(rooms, default=None)
            decision, history = decide(files, plan, before, self._clock(), room=room)
            if history != before:
                self._save(history=history)
            match decision:
                case Submit(display_names):
                    for name in display_names:
                        if not self._submit(name, manifest.files[name]):
                            break
                    self._room_for_tokens = count_free_slots(self.jobs.values())
                case Cancel(display_names, reason):
                    _log.info("Batch inference is cancelled (%s): %s.", ", ".join(display_names), reason)
                    for name in display_names:
                        self._cancel(name)
                    self._poll()
                case Wait(seconds, message):
                    if message != said:
                        _log.info("%s", message)
                        said = message
                    self._wait(seconds)
                    self._poll()
                    self._count_over_limit()
                case Finish(reason, may_bill):
                    _log.info("Batch inference is over: %s.", reason)
                    if may_bill:
                        named = ", ".join(map(self._describe, may_bill))
                        _log.warning("These batch-inference jobs have not ended and may still bill: %s.", named)
                        if self._manifest.intents:
                            reason = f"{reason}; may still bill: {named}"
                    self._save(is_over=True, over_because=reason)
                    return self._manifest

    def _describe(self, display_name: str) -> str:
        """Returns the name of the job of a file, or those of the jobs that may be it."""
        if display_name not in self._manifest.intents:
            return f"{display_name} ({self.jobs[display_name].name})"
        names = ", ".join(self._doubts.get(display_name, ())) or "none is listed yet"
        return f"{display_name} (its creation got no reply, and it is not cancelled; it may be one of: {names})"

    def _settle_doubts(self) -> None:
        """Finds out what has become of the submissions without a reply, see `adopt`."""
        for display_name in list(self._manifest.intents):
            try:
                self._settle(display_name)
            except (ApiUnavailableError, ApiNotFoundError) as error:
                _log.warning("%s What became of the submission of %s is not known yet.", error, display_name)

    def _settle(self, display_name: str) -> None:
        file = self._manifest.files[display_name]
        intent = Intent(sent_at=self._manifest.intents[display_name], rows=file.rows)
        listed = self._provider.created_since(intent.since)
        known = {job.name for job in (*self.jobs.values(), *self._manifest.jobs.values())}
        proofs = self._proofs.setdefault(display_name, {})
        while True:
            match adopt(intent, listed, known, proofs, self._clock()):
                case Prove(jobs):
                    for job in jobs:
                        proofs[job.name] = has_key_of(self._spec, self._provider, job, file)
                case Adopt(job):
                    self._record(display_name, replace(job, display_name=display_name))
                    _log.info(
                        "Batch-inference job %s, whose creation got no reply, is %s.", display_name, job.name
                    )
                    return
                case NotCreated():
                    self._save(intents=self._intents_without(display_name))
                    _log.info("Batch-inference job %s was not created, and is submitted again.", display_name)
                    return
                case Doubt(names):
                    self._doubts[display_name] = names
                    return

    def _intents_without(self, display_name: str) -> dict[str, float]:
        return {name: at for name, at in self._manifest.intents.items() if name != display_name}

    def _record(self, display_name: str, job: BatchJob) -> None:
        """Records the job of a submission."""
        self._manifest = self._manifest.changed(
            jobs={**self._manifest.jobs, display_name: job}, intents=self._intents_without(display_name)
        )
        self._count_submit(display_name, 1)
        self.jobs[display_name] = job

    def _submits(self, display_name: str) -> int:
        """Returns the number of submissions of a file; one that is not saved is known by its job."""
        return self._manifest.submits.get(display_name, int(display_name in self.jobs))

    def _count_submit(self, display_name: str, change: int) -> None:
        self._save(submits={**self._manifest.submits, display_name: self._submits(display_name) + change})

    def _count_over_limit(self) -> None:
        """Takes back the submission of each job that failed over the token limit, once for each job."""
        files, submits = self._manifest.files, dict(self._manifest.submits)
        failed = {
            name: job
            for name, job in self.jobs.items()
            if job.was_over_quota and job.name not in self._manifest.over_limit
        }
        self._room_for_tokens = count_free_slots(self.jobs.values())
        if not failed:
            return
        waiting = []
        for name, job in failed.items():
            limit = _token_limit(job)
            if limit is not None and files[name].input_tokens > limit:
                _log.warning(
                    "Batch-inference job %s has about %s tokens, more than the limit allows: %s",
                    name,
                    f"{files[name].input_tokens:,}",
                    job.error,
                )
                continue
            submits[name] = max(0, self._submits(name) - 1)
            waiting.append(name)
        self._save(
            submits=submits, over_limit=(*self._manifest.over_limit, *(job.name for job in failed.values()))
        )
        if waiting:
            _log.info(
                "The token limit of the provider is reached. These batch-inference jobs are submitted again when "
                "other jobs have ended, unless their rows have to be sent online before: %s. %s",
                ", ".join(waiting),
                failed[waiting[0]].error,
            )
        if all(job.has_ended for job in self.jobs.values()):
            self._room_for_tokens = 0  # jobs of somebody else are in the way: until the next poll
        try:  # they are submitted again with another upload
            delete_uploads(self._provider, display_name_prefix(self._spec), failed)
        except ApiError as error:
            _log.debug("Request files are deleted at the end of the run: %s", error)

    def _submit(self, display_name: str, file: RequestFile) -> bool:
        """Submits a file, or leaves it to be sent online; `False` if the provider takes no further job now."""
        self._doubts.pop(display_name, None)
        if not self._provider.has_display_names:
            self._save(intents={**self._manifest.intents, display_name: self._clock()})
        is_sent = self._send(display_name, file)
        if display_name in self._manifest.intents and display_name not in self._doubts:
            self._save(intents=self._intents_without(display_name))
        return is_sent

    def _send(self, display_name: str, file: RequestFile) -> bool:
        try:
            uri = self._spec.paths.requests_uri(file.digest)
            job = self._provider.submit(display_name, uri, _open_own, file.size)
        except BatchQuotaError as error:
            self._room = 0
            _log.info("The provider takes no further batch-inference job until another one has ended: %s", error)
            return False
        except (JobSpecError, JobRefusedError) as error:
            if not self.jobs:
                raise JobRefusedError(
                    f"{error} Only the pilot was sent, and the journal has its answers for a later run."
                ) from error
            # An error would leave the other jobs to run, and their results to expire before anybody reads them.
            _log.warning(
                "The %s rows of batch-inference job %s are sent online: %s", f"{file.rows:,}", display_name, error
            )
            self._count_submit(display_name, MAX_SUBMITS)
            return True
        except ApiUnavailableError as error:  # there is no job: its file was not stored, or nothing was sent
            self._room, self._submits_later = 0, True
            _log.warning("%s No job was created for %s. Submitting it again later.", error, display_name)
            return False
        except UncertainSubmitError as error:
            if not self._provider.has_display_names:
                self._doubts[display_name] = ()
                _log.warning("%s It is not submitted again before that is known.", error)
                return True
            _log.warning("%s Looking for the job by its display name.", error)
            job = self._find_submitted(display_name, error)
        self._record(display_name, job)
        _log.info("Batch-inference job %s has %s rows: %s", display_name, f"{file.rows:,}", job.name)
        return True

    def _find_submitted(self, display_name: str, error: UncertainSubmitError) -> BatchJob:
        known = {job.name for job in self.jobs.values()} | self._emptied
        for seconds in FIND_SECONDS:
            self._sleep(seconds)
            try:
                found = self._provider.find(display_name)
            except ApiUnavailableError as unavailable:
                _log.warning("%s", unavailable)
                continue
            for job in found:
                if job.display_name == display_name and job.name not in known:
                    return job
        raise error

    def _cancel_other(self, job: BatchJob, newest: BatchJob) -> None:
        """Cancels a job that no list has shown when its file was submitted again."""
        _log.warning(
            "Batch-inference job %s has the rows of %s and is cancelled; what it has answered is billed.",
            job.name,
            newest.name,
        )
        try:
            self._provider.cancel(job.name)
        except ApiError as error:
            _log.warning("Batch-inference job %s may still run and bill: %s", job.name, error)

    def _cancel(self, display_name: str) -> None:
        try:
            self._provider.cancel(self.jobs[display_name].name)
        except ApiError as error:
            _log.warning("Batch-inference job %s could not be cancelled: %s", display_name, error)

    def _poll(self) -> None:
        """Reads the state of the jobs that have not ended."""
        if self._submits_later or all(job.has_ended for job in self.jobs.values()):
            self._room = None  # jobs of somebody else were in the way, or an outage; perhaps they have ended
        self._submits_later = False
        for display_name, job in self.jobs.items():
            if job.has_ended:
                continue
            now = self._clock()
            try:
                polled = replace(self._read_job(job), display_name=display_name)
            except ApiError as error:
                self._unreachable_since = self._unreachable_since or now
                if now - self._unreachable_since > MAX_UNREACHABLE_SECONDS:
                    raise
                _log.warning("%s Polling again.", error)
                self.jobs[display_name] = self.jobs.pop(display_name)  # next time the others are polled first
                return
            self._unreachable_since = None
            self.jobs[display_name] = polled
            if polled.has_ended and not polled.was_over_quota:
                self._room = None
                _log.info("Batch-inference job %s has ended: %s%s", display_name, polled.state, _error(polled))

    def _read_job(self, job: BatchJob) -> BatchJob:
        """Returns a job as it is now, without results if the provider does not have it yet, or no longer.

        Raises:
            JobRefusedError: It failed because the account may not pay.
        """
        now = self._clock()
        try:
            polled = self._provider.poll(job)
            if polled.is_unpaid:
                raise JobRefusedError(
                    f"Batch-inference job {job.name} has failed: {polled.error}. Nothing is sent online."
                )
            return polled
        except ApiNotFoundError:
            job = replace(job, results=())
            if now - job.created_at < SURE_SECONDS:
                return job
            return replace(job, state="deleted", phase="cancelled", ended_at=now)

    def _save(self, **changes: object) -> None:
        self._manifest = self._manifest.changed(**changes)
        write_manifest(self._spec, self._manifest)

    def _wait(self, seconds: float) -> None:
        if not self._waits:
            raise BatchPendingError(seconds)
        self._sleep(seconds)


def _open_own(uri: str) -> IO[bytes]:
    """Opens a request file that this job has written; others may have put a link in its place.

    Raises:
        JobRefusedError: It is a link, whose target would be uploaded.
    """
    if not storage.is_local(uri):
        return storage.open(uri)
    try:
        return os.fdopen(open_no_link(Path(uri), os.O_RDONLY), "rb")
    except PermissionError as error:
        raise JobRefusedError(f"Request file {uri!r} is not uploaded: {error.strerror}.") from None


def _error(job: BatchJob) -> str:
    return f": {job.error}" if job.error else ""


def _token_limit(job: BatchJob) -> int | None:
    """Returns the limit that the error of a job names; `None` if it names none."""
    found = _LIMIT.search(job.error or "")
    digits = "" if found is None else found[1].replace(",", "")
    return int(digits) if digits else None


def count_free_slots(jobs: Collection[BatchJob]) -> int | None:
    """Returns the number of jobs that may be submitted after one has failed over the limit; `None` for no limit.

    Two for each job that has ended since, so that more run at once where others have freed tokens, less those that
    were submitted since. One if no job of the run holds tokens: the jobs of others are not known.

    Args:
        jobs: The newest job of each request file that has one.
    """
    failed_at = max((job.created_at for job in jobs if job.was_over_quota), default=None)
    if failed_at is None:
        return None
    others = [job for job in jobs if not job.was_over_quota]
    if all(job.has_ended for job in others):
        return 1
    ended = sum(job.has_ended and (job.ended_at or 0.0) >= failed_at for job in others)
    submitted = sum(job.created_at > failed_at for job in others)
    return max(0, 2 * ended - submitted)
