"""Batch inference of Gemini.

The Developer API keeps request and result files for 48 hours; on Vertex AI both are on Cloud Storage.

Fields as in google-genai 2.34 (`batches.py`) and ai.google.dev/api/batch-api. The `BatchJob` of google-genai lacks
`metadata.batchStats`, the numbers of answered and failed rows.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from airflow_provider_llmbeam.exceptions import JobRefusedError
from airflow_provider_llmbeam.providers.batch import (
    ENDED,
    MAX_VECTORS,
    BatchJob,
    BatchLimits,
    BatchProvider,
    OpenFile,
    UploadedFile,
)
from airflow_provider_llmbeam.providers.errors import (
    ApiDeniedError,
    ApiNotFoundError,
    ApiRefusedError,
    BatchQuotaError,
)
from airflow_provider_llmbeam.providers.gemini.files import FILE_NAME, GeminiFiles
from airflow_provider_llmbeam.providers.rest import RestClient
from airflow_provider_llmbeam.providers.vertex_batch import VertexAIBatches, google_count, google_phase
from airflow_provider_llmbeam.spec.model import GeminiModel
from airflow_provider_llmbeam.transport.server_reply import error_line, mapping_of, str_of, time_of

_NAME = re.compile(r"batches/[A-Za-z0-9_-]+")
_MIME_TYPE = "application/jsonl"
#: Time that a file is kept, in seconds, and the longest time that a job takes
#: (ai.google.dev/gemini-api/docs/files and /batch-api).
KEPT_SECONDS = 48 * 3600.0


def open_batches(
    model: GeminiModel, http: RestClient, *, output_uri: str, embeds: bool, kms_key_name: str | None
) -> BatchProvider:
    """See `providers.batch`."""
    if model.project:
        return VertexAIBatches(model, output_uri, http, kms_key_name)
    return GeminiBatches(model, http, embeds=embeds)


class GeminiBatches(BatchProvider):
    """Batch inference of a Gemini model on the Developer API.

    A line of the request file is `{"key": …, "request": …}`, one of a result file `{"key", "response" | "error"}`.

    Args:
        model: Model without `project`.
        http: Requests to the API.
        embeds: Whether the requests ask for vectors.
    """

    _NAME = _NAME
    _JOBS = "operations"
    # 2 GB per file, 20 GB for all files of a project, 100 jobs (ai.google.dev/gemini-api/docs/batch-api, files).
    # Result files count and cannot be deleted: 90 jobs of 100 MB leave them 11 GB. No limit of rows is documented;
    # a job that expires returns nothing, so that a small one loses less.
    limits = BatchLimits(max_rows=50_000, max_bytes=100_000_000, max_jobs=90)

    def __init__(self, model: GeminiModel, http: RestClient, *, embeds: bool = False) -> None:
        self._model = model.address
        self._method = "asyncBatchEmbedContent" if embeds else "batchGenerateContent"
        if embeds:
            self.limits = replace(self.limits, max_rows=MAX_VECTORS)
        root = f"{model.address.rpartition('/v1beta/')[0]}/v1beta"
        super().__init__(http, jobs=f"{root}/batches", root=root)
        self._files = GeminiFiles(model, http)

    def submit(self, display_name: str, uri: str, open_file: OpenFile, size: int) -> BatchJob:
        """See `BatchProvider`."""
        file = self._retry_upload(
            lambda: self._files.upload(display_name, _MIME_TYPE, lambda: open_file(uri), size).name
        )
        body = {"batch": {"displayName": display_name, "inputConfig": {"fileName": file}}}
        try:
            return self._create(display_name, self._post(f"{self._model}:{self._method}", body))
        except (JobRefusedError, BatchQuotaError):
            self._withdraw(file, display_name)
            raise

    def delete(self, job: BatchJob) -> None:
        """See `BatchProvider`."""
        url = self._url(job.name)
        for file in job.results:
            self._delete_result(file)
        self._http.delete(url)

    def uploads(self, prefix: str) -> list[UploadedFile]:
        """Returns the files that were uploaded for jobs whose display name starts with a prefix."""
        return list(self._files.uploaded(prefix))

    def delete_upload(self, name: str) -> None:
        """Deletes an uploaded file; does nothing if it does not exist."""
        self._files.delete(name)

    def results(self, job: BatchJob) -> Iterator[tuple[str, Iterator[bytes]]]:
        """See `BatchProvider`."""
        for file in job.results:
            yield file, self._content(file, job)

    def _content(self, file: str, job: BatchJob) -> Iterator[bytes]:
        try:
            yield from self._http.download(f"{self._root}/{file}:download", {"alt": "media"})
        except ApiDeniedError as error:
            # 403 is also its answer for a file that does not exist, see `_delete_result`. Nobody can delete a
            # result file, so that a 403 before it expires is about the access to it.
            ended_at = job.created_at + KEPT_SECONDS if job.ended_at is None else job.ended_at
            if error.http_status != 403 or time.time() - ended_at <= KEPT_SECONDS:
                raise
            raise ApiNotFoundError(str(error)) from error

    def _delete_result(self, name: str) -> None:
        # 403 is its answer for a file that does not exist, and 400 for a result file, whose name it finds too long
        # to delete it: github.com/googleapis/python-genai/issues/1759. It expires.
        if FILE_NAME.fullmatch(name):
            with contextlib.suppress(ApiDeniedError, ApiRefusedError):
                self._http.delete(f"{self._root}/{name}")

    def _query(self, prefix: str) -> Mapping[str, str]:
        return {"pageSize": "100"}  # the API has no filter

    def _display_name(self, reply: Mapping[str, Any]) -> str:
        return str_of(mapping_of(reply.get("metadata")).get("displayName"))

    def _job_of(self, reply: Mapping[str, Any]) -> BatchJob | None:
        return job_of(reply)


def job_of(reply: Mapping[str, Any]) -> BatchJob | None:
    """Returns the job that an `Operation` describes; `None` if it has no valid name."""
    if not _NAME.fullmatch(name := str_of(reply.get("name"))):
        return None
    metadata = mapping_of(reply.get("metadata"))
    error = error_line(reply.get("error"))
    state = str_of(metadata.get("state"))
    phase = google_phase(state)
    if reply.get("done") is True and phase not in ENDED:  # a state that is not known here
        phase = "failed" if error else "succeeded"
    stats = mapping_of(metadata.get("batchStats"))
    outputs = (mapping_of(metadata.get("output")), mapping_of(reply.get("response")))
    files = dict.fromkeys(str_of(output.get("responsesFile")) for output in outputs)
    return BatchJob(
        name=name,
        display_name=str_of(metadata.get("displayName")),
        state=state,
        phase=phase,
        created_at=time_of(metadata.get("createTime")) or 0.0,
        ended_at=time_of(metadata.get("endTime")),
        answered=google_count(stats, "successfulRequestCount"),
        failed=google_count(stats, "failedRequestCount"),
        error=error,
        results=tuple(file for file in files if FILE_NAME.fullmatch(file)) if phase in ENDED else (),
    )
