"""Clients of the providers' batch-inference APIs: jobs, the interface, and what all have in common."""

from __future__ import annotations

import contextlib
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any, ClassVar, Literal

import requests

from airflow_provider_llmbeam.exceptions import JobRefusedError, JobSpecError
from airflow_provider_llmbeam.providers.errors import (
    ApiDeniedError,
    ApiError,
    ApiNotFoundError,
    ApiRefusedError,
    ApiUnavailableError,
    BatchQuotaError,
    UncertainSubmitError,
)
from airflow_provider_llmbeam.providers.registry import part_of
from airflow_provider_llmbeam.providers.rest import RestClient, google_next_page, open_client
from airflow_provider_llmbeam.spec.model import Model
from airflow_provider_llmbeam.transport.server_reply import UNPAID, error_text, list_of, mapping_of

_log = logging.getLogger("llmbeam")

#: Jobs that are `partial`, `cancelled` or `expired` may have results, too.
BatchPhase = Literal["queued", "running", "cancelling", "succeeded", "partial", "failed", "cancelled", "expired"]

ENDED: frozenset[BatchPhase] = frozenset({"succeeded", "partial", "failed", "cancelled", "expired"})


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadedFile:
    """A request file that the provider keeps.

    Attributes:
        name: Name or id of the file at the provider, by which it is deleted.
        display_name: Display name of the job that it was uploaded for.
        created_at: Unix time of its upload; 0 if the provider does not say so.
    """

    name: str
    display_name: str
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchJob:
    """A batch-inference job.

    Attributes:
        name: Name of the job at the provider, by which it is polled and cancelled.
        display_name: Name given at its creation, by which it is found again.
        state: State in the words of the provider.
        phase: The same for all providers; an unknown state counts as `running`.
        created_at: Unix time of its creation; 0 if the provider does not say so.
        started_at: Unix time at which the provider began to answer; `None` if it has not, or does not say so.
        ended_at: Unix time of its end; `None` if it has not ended.
        answered: Number of answered rows, as far as the provider counts them; `None` if it does not.
        failed: Number of failed rows; `None` if the provider does not count them.
        rows: Number of its requests; `None` if the provider does not say so.
        error: Error of the job as a whole, in the words of the provider.
        results: Places of its results: directories or files at the provider or on Cloud Storage. Empty before its
            end, and if it has none.
    """

    name: str
    display_name: str
    state: str
    phase: BatchPhase
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None
    answered: int | None = None
    failed: int | None = None
    rows: int | None = None
    error: str | None = None
    results: tuple[str, ...] = ()

    @property
    def has_ended(self) -> bool:
        """Whether the job has ended, with or without results."""
        return self.phase in ENDED

    @property
    def is_unpaid(self) -> bool:
        """Whether it failed because the account may not pay, which no other way of the same account changes."""
        return self.phase == "failed" and (self.error or "").startswith(UNPAID)

    @property
    def was_over_quota(self) -> bool:
        """Whether it failed because of the tokens of other jobs, after whose end it can be submitted again."""
        # OpenAI accepts such a job, and then lets it fail: github.com/openai/openai-python/issues/1643, 2084.
        return self.phase == "failed" and (self.error or "").startswith("token_limit_exceeded")


#: Opens the request file at a URI for reading.
OpenFile = Callable[[str], IO[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Limits of the batch inference of a provider.

    Attributes:
        max_rows: Maximum number of rows of one job.
        max_bytes: Maximum size of the request file of one job, in bytes.
        max_jobs: Maximum number of jobs at the same time; `None` if the provider documents no such limit.
    """

    max_rows: int
    max_bytes: int
    max_jobs: int | None = None


#: Maximum number of vectors of one job: its results are harvested as a whole, which took 1.9 GiB for these many of
#: 3,072 numbers. OpenAI takes 50,000 (platform.openai.com/docs/api-reference/batch/create).
MAX_VECTORS = 10_000


class BatchProvider(ABC):
    """The batch-inference API of a provider, and what those of all providers have in common.

    Every method blocks, and retries transient errors for some seconds. Besides its own errors each raises
    `ApiUnavailableError`, `ApiDeniedError` and `ApiRefusedError`.

    Args:
        http: Requests to the API.
        jobs: Address of the list of jobs.
        root: Address before the name of a job.
    """

    limits: BatchLimits
    #: Whether its jobs have the display name of their creation, by which they are found. A job without one is
    #: known by the reply to its creation alone; where that was lost, `created_since` lists which it may be.
    has_display_names: ClassVar[bool] = True
    _NAME: ClassVar[re.Pattern[str]]
    #: Field of a page of the list that holds the jobs.
    _JOBS: ClassVar[str]
    _CANCEL: ClassVar[str] = ":cancel"

    def __init__(self, http: RestClient, *, jobs: str, root: str) -> None:
        self._http = http
        self._jobs = jobs
        self._root = root

    def probe(self) -> tuple[str, ...]:
        """Finds out whether a server that is not the provider's own has batch inference, before anything is sent.

        Returns:
            Sentences about what it lacks.

        Raises:
            JobSpecError: It has none.
        """
        return ()

    @abstractmethod
    def submit(self, display_name: str, uri: str, open_file: OpenFile, size: int) -> BatchJob:
        """Creates a job. It is not sent again after a failure that leaves open whether there is a job.

        Args:
            display_name: Name by which the job is found again.
            uri: Request file, JSON lines in the format of the provider. Vertex AI reads it from Cloud Storage; for
                the others it is uploaded.
            open_file: Opens the request file.
            size: Size of the request file, in bytes.

        Raises:
            JobRefusedError: The provider refuses the job.
            BatchQuotaError: Another job has to end first.
            UncertainSubmitError: The job may have been created.
        """

    def find(self, prefix: str) -> list[BatchJob]:
        """Returns the jobs whose display name starts with a prefix, the newest first."""
        if not self.has_display_names:
            return []
        replies = self._recent(self._listed(self._jobs, self._query(prefix), self._JOBS))
        found = (self._read(each) for each in replies if self._display_name(each).startswith(prefix))
        return sorted(found, key=lambda job: job.created_at, reverse=True)

    def created_since(self, since: float) -> list[BatchJob]:
        """Returns the jobs of the account that were created at a Unix time or later, whoever created them."""
        found = map(self._read, self._recent(self._listed(self._jobs, self._query(""), self._JOBS), since))
        return [job for job in found if job.created_at >= since]

    def poll(self, job: BatchJob) -> BatchJob:
        """Returns a job as it is now; without display names, with that of its submission.

        Raises:
            ApiNotFoundError: There is no such job.
        """
        polled = self.get(job.name)
        return polled if self.has_display_names else replace(polled, display_name=job.display_name)

    def get(self, name: str) -> BatchJob:
        """Returns a job.

        Raises:
            ApiNotFoundError: There is no such job.
        """
        return self._read(self._http.get(self._url(name)))

    def cancel(self, name: str) -> None:
        """Cancels a job; does nothing if it has ended.

        Raises:
            ApiNotFoundError: There is no such job.
        """
        try:
            self._http.cancel(f"{self._url(name)}{self._CANCEL}")
        except (ApiRefusedError, ApiUnavailableError):  # of a job that has ended, LiteLLM 1.108 says with a 500
            if not self.get(name).has_ended:
                raise

    @abstractmethod
    def delete(self, job: BatchJob) -> None:
        """Deletes a job that has ended, and its result files; ignores what is missing.

        Its request file is one of `uploads`, as are those of jobs that were never created.
        """

    def deletable(self, jobs: Sequence[BatchJob]) -> list[BatchJob]:
        """Returns those jobs of which `delete` would delete something.

        These are all jobs, except for OpenAI, which keeps a batch forever, without its files.
        """
        return list(jobs)

    @abstractmethod
    def uploads(self, prefix: str) -> list[UploadedFile]:
        """Returns the request files that were uploaded for jobs whose display name starts with a prefix.

        There are none for Vertex AI, whose request files are on the caller's bucket.
        """

    @abstractmethod
    def delete_upload(self, name: str) -> None:
        """Deletes an uploaded request file; does nothing if it does not exist."""

    @abstractmethod
    def results(self, job: BatchJob) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Yields the name and the content, in chunks, of each result file that the provider keeps.

        Yields nothing for Vertex AI, which writes to the directories on Cloud Storage in `job.results`.

        Raises:
            ApiNotFoundError: A file has expired.
        """

    def _post(self, url: str, body: Mapping[str, Any]) -> Callable[[], requests.Response]:
        """Returns the function that sends a body once."""
        return lambda: self._http.request("POST", url, json=body)

    def _create(self, display_name: str, post: Callable[[], requests.Response]) -> BatchJob:
        """Creates a job, and sends the request again only if it was certainly not processed.

        Raises:
            JobRefusedError: The provider refuses the job.
            BatchQuotaError: Another job has to end first.
            UncertainSubmitError: The job may have been created.
        """

        def send() -> BatchJob:
            job = self._read(self._http.json_object(post()))
            return replace(job, display_name=display_name)

        try:
            with _before_the_job():
                return self._http.retry(send, _was_refused_for_now)
        except ApiUnavailableError as error:
            if not error.was_processed:
                raise
            raise UncertainSubmitError(
                f"{error} Batch-inference job {display_name!r} may have been created, and then it runs and bills. "
                "Look it up before it is submitted again."
            ) from error

    def _read(self, reply: Mapping[str, Any]) -> BatchJob:
        if (job := self._job_of(reply)) is None:  # a proxy may have sent it
            fields = error_text(", ".join(reply)) or "no fields"
            raise ApiUnavailableError(f"Expected a batch-inference job; got an object with {fields}.")
        return job

    def _retry_upload(self, send: Callable[[], str]) -> str:
        """Calls a function that uploads a request file, again after a transient failure.

        Raises:
            JobRefusedError: The provider refuses the file.
            BatchQuotaError: It stores no more files.
        """
        with _before_the_job():
            return self._http.retry(send)

    def _withdraw(self, file: str, display_name: str) -> None:
        """Deletes the uploaded request file of a job that was refused; a failure is only logged."""
        try:
            self.delete_upload(file)
        except ApiError as error:
            _log.warning(
                "The request file %s of %s was uploaded with all its prompts, and could not be deleted: %s "
                "`SweepBatchInferenceOperator` deletes it later.",
                file,
                display_name,
                error,
            )

    def _listed(self, url: str, query: Mapping[str, str], field: str) -> Iterator[Mapping[str, Any]]:
        """Yields the items of all pages of a list."""
        for page in self._http.pages(url, query, self._next_page):
            yield from map(mapping_of, list_of(page.get(field)))

    def _recent(
        self, replies: Iterator[Mapping[str, Any]], since: float | None = None
    ) -> Iterator[Mapping[str, Any]]:
        """Yields the jobs of a list that may be looked for: of one with the newest job first, those of a time."""
        return replies

    def _url(self, name: str) -> str:
        if not self._NAME.fullmatch(name):
            raise ApiNotFoundError(f"{name!r} is not the name of a batch-inference job of this provider.")
        return f"{self._root}/{name}"

    def _next_page(self, page: Mapping[str, Any]) -> Mapping[str, str]:
        return google_next_page(page)

    @abstractmethod
    def _query(self, prefix: str) -> Mapping[str, str]:
        """Returns the parameters of the list of jobs, which may then hold jobs with other display names, too."""

    @abstractmethod
    def _display_name(self, reply: Mapping[str, Any]) -> str:
        """Returns the display name of a job."""

    @abstractmethod
    def _job_of(self, reply: Mapping[str, Any]) -> BatchJob | None:
        """Returns the job that a reply describes; `None` if it describes none."""


@contextlib.contextmanager
def _before_the_job() -> Iterator[None]:
    """Turns refusals into errors that say that there is no job."""
    try:
        yield
    except (ApiDeniedError, ApiNotFoundError, ApiRefusedError) as error:
        raise JobRefusedError(f"{error} No job was created.") from error
    except ApiUnavailableError as error:
        if error.http_status != 429:
            raise
        raise BatchQuotaError(f"{error} No job was created. Submit it when another job has ended.") from error


def _was_refused_for_now(error: ApiUnavailableError) -> bool:
    """Whether the same submission may succeed soon; a 429 without advice is one of jobs or enqueued tokens."""
    return not error.was_processed and (error.http_status is None or error.retry_after_seconds is not None)


def delete_uploads(provider: BatchProvider, prefix: str, display_names: Collection[str]) -> None:
    """Deletes the uploaded request files of some jobs, which are found by the display names that we gave them.

    A job may have several: an upload is sent again after a lost reply, and a job may have been refused after it.

    Args:
        provider: The provider.
        prefix: Beginning of these display names.
        display_names: Display names of the jobs, which need their files no more.

    Raises:
        ApiError: Some could not be listed or deleted; the message names them.
    """
    faults = []
    for file in provider.uploads(prefix):
        if file.display_name in display_names:
            try:
                provider.delete_upload(file.name)
            except ApiError as error:
                faults.append(f"Request file {file.name} of {file.display_name}, with all its prompts: {error}")
    if faults:
        raise ApiError(" ".join([*faults, "`SweepBatchInferenceOperator` deletes what is left."]))


def open_provider(
    model: Model,
    *,
    output_uri: str,
    embeds: bool = False,
    session: requests.Session | None = None,
    kms_key_name: str | None = None,
) -> BatchProvider:
    """Opens the batch-inference API of a model.

    Args:
        model: The model.
        output_uri: Directory of the run on Cloud Storage, for the results of Vertex AI.
        embeds: Whether the requests ask for vectors, for which there is no client of Vertex AI.
        session: Session that sends the credentials and refuses redirects. By default one with the credentials of
            this process.
        kms_key_name: Key of Cloud KMS that encrypts the jobs on Vertex AI.

    Raises:
        JobSpecError: The model has no batch inference, or there are no credentials.
    """
    if (batch := part_of(model, "batch")) is None:
        raise JobSpecError(f"Models of type {model.type!r} have no batch inference here.")
    provider: BatchProvider = batch.open_batches(
        model, open_client(model, session), output_uri=output_uri, embeds=embeds, kms_key_name=kms_key_name
    )
    return provider


def lines_of(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the lines of a file that arrives in chunks, without blank ones."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from filter(bytes.strip, lines)
    if rest.strip():
        yield rest
