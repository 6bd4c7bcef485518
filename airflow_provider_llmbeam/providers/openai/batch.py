"""Batch inference of OpenAI (platform.openai.com/docs/api-reference/batch), and of servers with the same API."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import quote

from airflow_provider_llmbeam.exceptions import JobRefusedError, JobSpecError
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
from airflow_provider_llmbeam.providers.errors import (
    ApiError,
    ApiNotFoundError,
    ApiRefusedError,
    ApiUnavailableError,
    BatchQuotaError,
)
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
#: The same up to which the name of a job without metadata is read from its request file: a request for each.
_NAMED_SECONDS = 3 * 86_400.0
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
    """See `providers.batch`; the results are at the server."""
    return OpenAIBatches(model, http, embeds=embeds)


class OpenAIBatches(BatchProvider):
    """Batch inference of a model of OpenAI, or of another server with files and batches.

    A batch is known by its metadata, and where a server does not return that, by the name of its request file.
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
        self._server = model.base_url
        self._is_openais = model.is_openais
        self._file_names: dict[str, str] = {}
        self._endpoint = "/v1/embeddings" if embeds else "/v1/chat/completions"
        if embeds:
            self.limits = replace(self.limits, max_rows=MAX_VECTORS)

    def probe(self) -> tuple[str, ...]:
        """See `BatchProvider`; OpenAI itself is not asked."""
        if self._is_openais:
            return ()
        for url in (self._jobs, self._files):
            try:
                self._http.retry(partial(self._list, url), lambda error: error.http_status != 501)
            except ApiError as error:
                # vLLM's answer where batches are switched off is 501 (github.com/vllm-project/vllm/pull/44445).
                has_none = getattr(error, "http_status", None) == 501
                if not has_none and not isinstance(error, ApiNotFoundError | ApiRefusedError):
                    raise
                raise JobSpecError(
                    f"`inference.mode`: must be 'online' with the server at {self._server}: batch inference needs "
                    f"a list at {url}. {error}"
                ) from error
        if self._refusal("cancel") != self._refusal("nothing"):
            return ()
        return (
            "It cancels no batch, so that one that is not finished in time goes on while its rows are sent "
            "online.",
        )

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
            job = self._create(display_name, self._post(self._jobs, body))
            if not self._is_openais:
                self._refuse_nameless(job)
            return job
        except (JobRefusedError, BatchQuotaError):
            self._withdraw(file, display_name)
            raise

    def get(self, name: str) -> BatchJob:
        """See `BatchProvider`."""
        return self._read(self._named(self._http.get(self._url(name))))

    def delete(self, job: BatchJob) -> None:
        """Deletes the result files of a job; the job itself is kept."""
        for file in job.results:
            self.delete_upload(file)

    def deletable(self, jobs: Sequence[BatchJob]) -> list[BatchJob]:
        """Returns the jobs of which the server still has a result file."""
        if not any(job.results for job in jobs):
            return []
        if not self._is_openais:  # LiteLLM 1.108 lists files by other ids than those of its batches
            return [job for job in jobs if any(map(self._file, job.results))]
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
            raise ApiUnavailableError(f"The server stored {uri!r} without an id.")
        return name

    def _refuse_nameless(self, job: BatchJob) -> None:
        """Refuses a server whose batches cannot be found again.

        Raises:
            JobRefusedError: The job has lost its name; it is cancelled.
        """
        try:
            found = self.get(job.name)
        except ApiError:  # the next poll finds out whether it is there
            return
        if found.display_name == job.display_name:
            return
        became = "was cancelled"
        try:
            self.cancel(job.name)
        except ApiError:
            became = "may still run"
        raise JobRefusedError(
            f"The server at {self._server} returns neither the metadata of a batch nor the name of its file, so "
            f"that a later try could not find batch {job.name}, and would send its rows again. It {became}. Set "
            "`inference.mode` to 'online'."
        )

    def _list(self, url: str) -> None:
        self._http.json_object(self._http.request("GET", url, params={"limit": "1"}))

    def _refusal(self, method: str) -> str:
        """Returns how the server refuses a method of a batch that does not exist, without the method's name."""
        try:
            self._http.request("POST", f"{self._root}/batch_unknown/{method}", json={}).close()
        except ApiError as error:
            return str(error).replace(method, "")
        return ""

    def _file(self, name: str) -> Mapping[str, Any]:
        """Returns a file; an empty object if there is none."""
        try:
            return self._http.get(f"{self._files}/{name}")
        except ApiNotFoundError:
            return {}

    def _named(self, reply: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns a batch of a server that does not return metadata with the name of its request file as such."""
        file = str_of(reply.get("input_file_id"))
        if self._is_openais or _display_name(reply) or not _NAME.fullmatch(file):
            return reply
        if file not in self._file_names:
            found = upload_of(self._file(file))
            self._file_names[file] = found.display_name if found else ""
        return {**reply, "metadata": {_DISPLAY_NAME: self._file_names[file]}}

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
            yield self._named(reply) if newest - (created_at or 0.0) < _NAMED_SECONDS else reply

    def _query(self, prefix: str) -> Mapping[str, str]:
        return {"limit": "100"}  # the API has no filter

    def _next_page(self, page: Mapping[str, Any]) -> Mapping[str, str]:
        # LiteLLM 1.108 has other ids for its items than for the pages.
        last = str_of(page.get("last_id")) or str_of(
            mapping_of(next(reversed(list_of(page.get("data"))), None)).get("id")
        )
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
