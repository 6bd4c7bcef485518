"""Batch inference of OpenAI (platform.openai.com/docs/api-reference/batch)."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.providers.batch import (
    ENDED,
    MAX_VECTORS,
    BatchJob,
    BatchLimits,
    BatchPhase,
    BatchProvider,
    OpenFile,
    UploadedFile,
)
from airflow_provider_llmbeam.providers.errors import ApiUnavailableError, BatchQuotaError
from airflow_provider_llmbeam.providers.rest import FileBody, RestClient
from airflow_provider_llmbeam.spec.model import OpenAIModel
from airflow_provider_llmbeam.transport.server_reply import (
    count_of,
    error_line,
    list_of,
    mapping_of,
    str_of,
    time_of,
)

_NAME = re.compile(r"[A-Za-z0-9_-]+")
#: End of the name of an uploaded file, after the display name of its job.
_SUFFIX = ".jsonl"
#: Files of one page of a list; OpenAI allows 10,000 (platform.openai.com/docs/api-reference/files/list).
_FILES_PER_PAGE = 1_000
#: Field of `metadata` with the display name: a batch of OpenAI has none.
_DISPLAY_NAME = "display_name"
#: Age of a job against the newest one of the account, in seconds, beyond which none is looked for: a job ends
#: within a day, and OpenAI keeps all of them forever.
MAX_AGE_SECONDS = 90 * 86_400.0
_PHASES: Mapping[str, BatchPhase] = {
    "validating": "queued",
    "cancelling": "cancelling",
    "completed": "succeeded",
    "failed": "failed",
    "cancelled": "cancelled",
    "expired": "expired",
}


def open_batches(
    model: OpenAIModel, http: RestClient, *, output_uri: str, embeds: bool, kms_key_name: str | None
) -> BatchProvider:
    """See `providers.batch`; the results are at OpenAI."""
    return OpenAIBatches(model, http, embeds=embeds)


class OpenAIBatches(BatchProvider):
    """Batch inference of a model of OpenAI.

    A line of the request file is `{"custom_id": …, "method": "POST", "url": …, "body": …}`, one of a result file
    `{"custom_id", "response", "error"}`. There is a file of answers, and one of errors.

    Args:
        model: The model.
        http: Requests to the API.
        embeds: Whether the requests ask for vectors.
    """

    _NAME = _NAME
    _JOBS = "data"
    _CANCEL = "/cancel"
    # 50,000 rows and 200 MB (platform.openai.com/docs/guides/batch); a tenth less, as it is not said whether that
    # is 10^6 or 2^20 bytes, and how rows are counted. The numbers of jobs and of tokens depend on the account.
    limits = BatchLimits(max_rows=45_000, max_bytes=180_000_000)

    def __init__(self, model: OpenAIModel, http: RestClient, *, embeds: bool = False) -> None:
        super().__init__(http, jobs=f"{model.base_url}/batches", root=f"{model.base_url}/batches")
        self._files = f"{model.base_url}/files"
        self._endpoint = "/v1/embeddings" if embeds else "/v1/chat/completions"
        if embeds:
            self.limits = replace(self.limits, max_rows=MAX_VECTORS)

    def submit(self, display_name: str, uri: str, open_file: OpenFile, size: int) -> BatchJob:
        """See `BatchProvider`."""
        file = self._retry_upload(lambda: self._upload(display_name, uri, open_file, size))
        body = {
            "input_file_id": file,
            "endpoint": self._endpoint,
            "completion_window": "24h",
            "metadata": {_DISPLAY_NAME: display_name},
        }
        try:
            return self._create(display_name, self._post(self._jobs, body))
        except (JobSpecError, BatchQuotaError):
            self._withdraw(file, display_name)
            raise

    def delete(self, job: BatchJob) -> None:
        """Deletes the result files of a job; OpenAI keeps the job itself."""
        for file in job.results:
            self.delete_upload(file)

    def deletable(self, jobs: Sequence[BatchJob]) -> list[BatchJob]:
        """Returns the jobs of which OpenAI still has a result file."""
        if not any(job.results for job in jobs):
            return []
        kept = {str_of(reply.get("id")) for reply in self._listed_files("batch_output")}
        return [job for job in jobs if not kept.isdisjoint(job.results)]

    def uploads(self, prefix: str) -> list[UploadedFile]:
        """Returns the request files that were uploaded for jobs whose display name starts with a prefix."""
        files = map(upload_of, self._listed_files("batch"))
        return [file for file in files if file and file.display_name.startswith(prefix)]

    def delete_upload(self, name: str) -> None:
        """Deletes an uploaded request file; does nothing if it does not exist."""
        if _NAME.fullmatch(name):
            self._http.delete(f"{self._files}/{name}")

    def results(self, job: BatchJob) -> Iterator[tuple[str, Iterator[bytes]]]:
        """See `BatchProvider`."""
        for file in job.results:
            yield file, self._http.download(f"{self._files}/{file}/content")

    def _upload(self, display_name: str, uri: str, open_file: OpenFile, size: int) -> str:
        """Uploads a file and returns its id."""
        boundary = secrets.token_hex(16)
        field = f'--{boundary}\r\nContent-Disposition: form-data; name="'
        head = (
            f'{field}purpose"\r\n\r\nbatch\r\n'
            f'{field}file"; filename="{quote(display_name)}{_SUFFIX}"\r\nContent-Type: application/jsonl\r\n\r\n'
        )
        with open_file(uri) as file:
            reply = self._http.send_file(
                self._files,
                {"Content-Type": f"multipart/form-data; boundary={boundary}"},
                data=FileBody(file, size, head.encode(), f"\r\n--{boundary}--\r\n".encode()),
            )
        name = str_of(self._http.json_object(reply).get("id"))
        if not _NAME.fullmatch(name):
            raise ApiUnavailableError(f"OpenAI stored {uri!r} without an id.")
        return name

    def _listed_files(self, purpose: str) -> Iterator[Mapping[str, Any]]:
        return self._listed(self._files, {"purpose": purpose, "limit": str(_FILES_PER_PAGE)}, "data")

    def _recent(
        self, replies: Iterator[Mapping[str, Any]], since: float | None = None
    ) -> Iterator[Mapping[str, Any]]:
        """See `BatchProvider`; ends before the next page, as long as the list has the newest job first."""
        newest, before, is_newest_first = 0.0, math.inf, True
        for reply in replies:
            if (created_at := time_of(reply.get("created_at"))) is not None:
                newest, is_newest_first = max(newest, created_at), is_newest_first and created_at <= before
                before = created_at
                if is_newest_first and newest - created_at > MAX_AGE_SECONDS:
                    return
            yield reply

    def _query(self, prefix: str) -> Mapping[str, str]:
        return {"limit": "100"}  # the API has no filter

    def _next_page(self, page: Mapping[str, Any]) -> Mapping[str, str]:
        last = str_of(mapping_of(next(reversed(list_of(page.get("data"))), None)).get("id"))
        return {"after": last} if page.get("has_more") is True and last else {}

    def _display_name(self, reply: Mapping[str, Any]) -> str:
        return _display_name(reply)

    def _job_of(self, reply: Mapping[str, Any]) -> BatchJob | None:
        return job_of(reply)


def upload_of(reply: Mapping[str, Any]) -> UploadedFile | None:
    """Returns the uploaded file that a `File` describes; `None` if it has no valid id."""
    if not _NAME.fullmatch(name := str_of(reply.get("id"))):
        return None
    return UploadedFile(
        name=name,
        display_name=str_of(reply.get("filename")).removesuffix(_SUFFIX),
        created_at=time_of(reply.get("created_at")) or 0.0,
    )


def job_of(reply: Mapping[str, Any]) -> BatchJob | None:
    """Returns the job that a `Batch` describes; `None` if it has no valid id."""
    if not _NAME.fullmatch(name := str_of(reply.get("id"))):
        return None
    state = str_of(reply.get("status"))
    phase = _PHASES.get(state, "running")
    counts = mapping_of(reply.get("request_counts"))
    errors = list_of(mapping_of(reply.get("errors")).get("data"))
    ended_at = (time_of(reply.get(f"{each}_at")) for each in ("completed", "failed", "expired", "cancelled"))
    files = (str_of(reply.get("output_file_id")), str_of(reply.get("error_file_id")))
    return BatchJob(
        name=name,
        display_name=_display_name(reply),
        state=state,
        phase=phase,
        created_at=time_of(reply.get("created_at")) or 0.0,
        started_at=time_of(reply.get("in_progress_at")),
        ended_at=next((each for each in ended_at if each is not None), None),
        answered=count_of(counts.get("completed")),
        failed=count_of(counts.get("failed")),
        error=next(filter(None, map(error_line, errors)), None),
        results=tuple(file for file in files if _NAME.fullmatch(file)) if phase in ENDED else (),
    )


def _display_name(reply: Mapping[str, Any]) -> str:
    return str_of(mapping_of(reply.get("metadata")).get(_DISPLAY_NAME))
