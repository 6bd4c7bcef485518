"""What the batch-inference APIs of all providers have in common."""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from airflow_provider_llmbeam.providers.batch_http import BatchHttp
from airflow_provider_llmbeam.providers.batch_job import BatchJob
from airflow_provider_llmbeam.providers.batch_reported import google_next_page, read_job
from airflow_provider_llmbeam.providers.errors import (
    BatchConflictError,
    BatchError,
    BatchNotFoundError,
    BatchRefusedError,
)
from airflow_provider_llmbeam.transport.server_reply import list_of, mapping_of

_log = logging.getLogger("llmbeam")


class RestBatches(ABC):
    """Finds, polls and cancels the jobs of a provider; see `BatchProvider`.

    Args:
        http: Requests to the API.
        jobs: Address of the list of jobs.
        root: Address before the name of a job.
    """

    _NAME: ClassVar[re.Pattern[str]]
    #: Field of a page of the list that holds the jobs.
    _JOBS: ClassVar[str]
    _CANCEL: ClassVar[str] = ":cancel"

    def __init__(self, http: BatchHttp, *, jobs: str, root: str) -> None:
        self._http = http
        self._jobs = jobs
        self._root = root

    def find(self, prefix: str) -> list[BatchJob]:
        """Returns the jobs whose display name starts with a prefix, the newest first."""
        replies = self._recent(self._listed(self._jobs, self._query(prefix), self._JOBS))
        found = (read_job(each, self._job_of) for each in replies if self._display_name(each).startswith(prefix))
        return sorted(found, key=lambda job: job.created_at, reverse=True)

    def get(self, name: str) -> BatchJob:
        """Returns a job."""
        return read_job(self._http.get(self._url(name)), self._job_of)

    def cancel(self, name: str) -> None:
        """Cancels a job; does nothing if it has ended."""
        try:
            self._http.cancel(f"{self._url(name)}{self._CANCEL}")
        except (BatchRefusedError, BatchConflictError):
            if not self.get(name).has_ended:
                raise

    def deletable(self, jobs: Sequence[BatchJob]) -> list[BatchJob]:
        """Returns those jobs of which `delete` would delete something."""
        return list(jobs)

    def _withdraw(self, file: str, display_name: str) -> None:
        """Deletes the uploaded request file of a job that was refused; a failure is only logged."""
        try:
            self.delete_upload(file)
        except BatchError as error:
            _log.warning(
                "The request file %s of %s was uploaded with all its prompts, and could not be deleted: %s "
                "`SweepBatchInferenceOperator` deletes it later.",
                file,
                display_name,
                error,
            )

    @abstractmethod
    def delete_upload(self, name: str) -> None:
        """Deletes an uploaded request file; does nothing if it does not exist."""

    def _listed(self, url: str, query: Mapping[str, str], field: str) -> Iterator[Mapping[str, Any]]:
        """Yields the items of all pages of a list."""
        for page in self._http.pages(url, query, self._next_page):
            yield from map(mapping_of, list_of(page.get(field)))

    def _recent(self, replies: Iterator[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """Yields the jobs of a list that may be looked for."""
        return replies

    def _url(self, name: str) -> str:
        if not self._NAME.fullmatch(name):
            raise BatchNotFoundError(f"{name!r} is not the name of a batch-inference job of this provider.")
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
