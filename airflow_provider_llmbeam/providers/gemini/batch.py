"""Batch inference of Gemini.

The Developer API keeps request and result files for 48 hours; on Vertex AI both are on Cloud Storage.

Fields as in google-genai 2.34 (`batches.py`), ai.google.dev/api/batch-api, and in `BatchPredictionJob` of Vertex
AI's REST reference. The `BatchJob` of google-genai lacks `metadata.batchStats`, the numbers of answered and failed
rows.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

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
    ApiDeniedError,
    ApiNotFoundError,
    ApiRefusedError,
    BatchQuotaError,
)
from airflow_provider_llmbeam.providers.gemini.files import FILE_NAME, GeminiFiles
from airflow_provider_llmbeam.providers.rest import RestClient
from airflow_provider_llmbeam.spec.model import GeminiModel
from airflow_provider_llmbeam.transport.server_reply import count_of, error_line, mapping_of, str_of, time_of

_NAME = re.compile(r"batches/[A-Za-z0-9_-]+")
_MIME_TYPE = "application/jsonl"
#: Time that a file is kept, in seconds, and the longest time that a job takes
#: (ai.google.dev/gemini-api/docs/files and /batch-api).
KEPT_SECONDS = 48 * 3600.0


#: States of Google without `JOB_STATE_` (Vertex AI) or `BATCH_STATE_` (Developer API).
_GOOGLE_PHASES: Mapping[str, BatchPhase] = {
    "QUEUED": "queued",
    "PENDING": "queued",
    "PAUSED": "queued",  # it may be resumed
    "CANCELLING": "cancelling",
    "SUCCEEDED": "succeeded",
    "PARTIALLY_SUCCEEDED": "partial",
    "FAILED": "failed",
    "CANCELLED": "cancelled",
    "EXPIRED": "expired",
}


def google_phase(state: str) -> BatchPhase:
    """Returns the phase of a state of Google; an unknown one is `running`."""
    return _GOOGLE_PHASES.get(state.rpartition("_STATE_")[2], "running")


def google_count(counts: Mapping[str, Any], name: str) -> int | None:
    """Returns a count, which Google's JSON leaves out if it is zero; `None` if there are no counts."""
    return count_of(counts.get(name, 0)) if counts else None


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
            return self._create(f"{self._model}:{self._method}", body, display_name)
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


_WORD = "[A-Za-z0-9][A-Za-z0-9_.:-]*"
_VERTEX_NAME = re.compile(f"projects/{_WORD}/locations/{_WORD}/batchPredictionJobs/{_WORD}")


class VertexAIBatches(BatchProvider):
    """Batch inference of a Gemini model on Vertex AI.

    Args:
        model: Model with `project`.
        output_uri: Directory on Cloud Storage, `gs://…`. Each job writes to a new directory in it.
        http: Requests to the API.
        kms_key_name: Key of Cloud KMS that encrypts the jobs.
    """

    _NAME = _VERTEX_NAME
    _JOBS = "batchPredictionJobs"
    # 200,000 rows and 1 GB (cloud.google.com/vertex-ai/generative-ai/docs/multimodal/batch-prediction-gemini);
    # a tenth less, as it is not said whether that is 10^9 or 2^30 bytes, and how rows are counted.
    limits = BatchLimits(max_rows=180_000, max_bytes=900_000_000)

    def __init__(
        self, model: GeminiModel, output_uri: str, http: RestClient, kms_key_name: str | None = None
    ) -> None:
        origin, _, resource = model.address.rpartition("/v1beta1/")
        parent = f"projects/{model.project}/locations/{model.location}"
        root = f"{origin}/v1beta1"
        super().__init__(http, jobs=f"{root}/{parent}/batchPredictionJobs", root=root)
        self._model = model.name if model.name.startswith("projects/") else resource.removeprefix(f"{parent}/")
        self._optional: dict[str, Any] = {"labels": model.labels} if model.labels else {}
        if kms_key_name is not None:
            self._optional["encryptionSpec"] = {"kmsKeyName": kms_key_name}
        self._output_uri = output_uri

    def submit(self, display_name: str, uri: str, open_file: OpenFile, size: int) -> BatchJob:
        """See `BatchProvider`; the request file is not read here."""
        for what, value in (("request file", uri), ("output directory", self._output_uri)):
            if not value.startswith("gs://"):
                raise JobSpecError(
                    f"Batch inference on Vertex AI needs its {what} on Cloud Storage; got {value!r}. "
                    "Set `state_uri` to a directory 'gs://…'."
                )
        body = {
            "displayName": display_name,
            "model": self._model,
            "inputConfig": {"instancesFormat": "jsonl", "gcsSource": {"uris": [uri]}},
            # Without it the results go to a directory that is derived from the name of the request file.
            "outputConfig": {
                "predictionsFormat": "jsonl",
                "gcsDestination": {"outputUriPrefix": self._output_uri},
            },
            **self._optional,
        }
        return self._create(self._jobs, body, display_name)

    def delete(self, job: BatchJob) -> None:
        """See `BatchProvider`; files on Cloud Storage are the caller's."""
        self._http.delete(self._url(job.name))

    def uploads(self, prefix: str) -> list[UploadedFile]:
        """Returns nothing: request files are on the caller's bucket."""
        return []

    def delete_upload(self, name: str) -> None:
        """Does nothing: there are no uploaded files."""

    def results(self, job: BatchJob) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Yields nothing: the caller reads `job.results` on Cloud Storage."""
        yield from ()

    def _query(self, prefix: str) -> Mapping[str, str]:
        return {"filter": f'display_name:"{prefix}*"', "pageSize": "100"}

    def _display_name(self, reply: Mapping[str, Any]) -> str:
        return str_of(reply.get("displayName"))

    def _job_of(self, reply: Mapping[str, Any]) -> BatchJob | None:
        return vertex_job_of(reply)


def vertex_job_of(reply: Mapping[str, Any]) -> BatchJob | None:
    """Returns the job that a `BatchPredictionJob` describes; `None` if it has no valid name."""
    if not _VERTEX_NAME.fullmatch(name := str_of(reply.get("name"))):
        return None
    state = str_of(reply.get("state"))
    phase = google_phase(state)
    stats = mapping_of(reply.get("completionStats"))
    directory = str_of(mapping_of(reply.get("outputInfo")).get("gcsOutputDirectory"))
    return BatchJob(
        name=name,
        display_name=str_of(reply.get("displayName")),
        state=state,
        phase=phase,
        created_at=time_of(reply.get("createTime")) or 0.0,
        started_at=time_of(reply.get("startTime")),
        ended_at=time_of(reply.get("endTime")),
        answered=google_count(stats, "successfulCount"),
        failed=google_count(stats, "failedCount"),
        error=error_line(reply.get("error")),
        results=(directory,) if phase in ENDED and directory.startswith("gs://") else (),
    )
