"""Batch inference on Vertex AI, from and to files on Cloud Storage; the lines are those of the model's family.

Fields as in `BatchPredictionJob` of Vertex AI's REST reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.providers.batch import (
    ENDED,
    BatchJob,
    BatchLimits,
    BatchPhase,
    BatchProvider,
    OpenFile,
    UploadedFile,
)
from airflow_provider_llmbeam.providers.rest import RestClient
from airflow_provider_llmbeam.spec.model import GeminiModel, Model
from airflow_provider_llmbeam.transport.server_reply import count_of, error_line, mapping_of, str_of, time_of

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


_WORD = "[A-Za-z0-9][A-Za-z0-9_.:-]*"
_VERTEX_NAME = re.compile(f"projects/{_WORD}/locations/{_WORD}/batchPredictionJobs/{_WORD}")


class VertexAIBatches(BatchProvider):
    """Batch inference of a model on Vertex AI.

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
        self,
        model: Model,
        output_uri: str,
        http: RestClient,
        kms_key_name: str | None = None,
    ) -> None:
        origin, resource = re.split("/v1(?:beta1)?/(?=projects/)", model.address, maxsplit=1)
        parent = f"projects/{model.project}/locations/{model.location}"
        root = f"{origin}/v1beta1"
        super().__init__(http, jobs=f"{root}/{parent}/batchPredictionJobs", root=root)
        self._model = model.name if model.name.startswith("projects/") else resource.removeprefix(f"{parent}/")
        labels = model.labels if isinstance(model, GeminiModel) else {}
        self._optional: dict[str, Any] = {"labels": labels} if labels else {}
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
        return self._create(display_name, self._post(self._jobs, body))

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
