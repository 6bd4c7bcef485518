"""Batch inference of Gemini on Vertex AI: request and result files are on Cloud Storage.

Fields as in google-genai 2.34 (`batches.py`) and in `BatchPredictionJob` of Vertex AI's REST reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.providers.batch_client import BatchLimits, OpenFile
from airflow_provider_llmbeam.providers.batch_http import BatchHttp
from airflow_provider_llmbeam.providers.batch_job import ENDED, BatchJob, UploadedFile
from airflow_provider_llmbeam.providers.batch_reported import error_of, google_count, google_phase, time_of
from airflow_provider_llmbeam.providers.batch_rest import RestBatches
from airflow_provider_llmbeam.spec.model import GeminiModel
from airflow_provider_llmbeam.transport.server_reply import mapping_of, str_of

_WORD = "[A-Za-z0-9][A-Za-z0-9_.:-]*"
_NAME = re.compile(f"projects/{_WORD}/locations/{_WORD}/batchPredictionJobs/{_WORD}")


class VertexAIBatches(RestBatches):
    """Batch inference of a Gemini model on Vertex AI.

    Args:
        model: Model with `project`.
        output_uri: Directory on Cloud Storage, `gs://…`. Each job writes to a new directory in it.
        http: Requests to the API.
    """

    _NAME = _NAME
    _JOBS = "batchPredictionJobs"
    # 200,000 rows and 1 GB (cloud.google.com/vertex-ai/generative-ai/docs/multimodal/batch-prediction-gemini);
    # a tenth less, as it is not said whether that is 10^9 or 2^30 bytes, and how rows are counted.
    limits = BatchLimits(max_rows=180_000, max_bytes=900_000_000)

    def __init__(self, model: GeminiModel, output_uri: str, http: BatchHttp) -> None:
        origin, _, resource = model.address.rpartition("/v1beta1/")
        parent = f"projects/{model.project}/locations/{model.location}"
        root = f"{origin}/v1beta1"
        super().__init__(http, jobs=f"{root}/{parent}/batchPredictionJobs", root=root)
        self._model = model.name if model.name.startswith("projects/") else resource.removeprefix(f"{parent}/")
        self._labels = {"labels": model.labels} if model.labels else {}
        self._output_uri = output_uri

    def submit(self, display_name: str, uri: str, open_file: OpenFile, size: int) -> BatchJob:
        """See `BatchProvider`; the request file is not read here."""
        for what, value in (("request file", uri), ("output directory", self._output_uri)):
            if not value.startswith("gs://"):
                raise JobSpecError(
                    f"Batch inference on Vertex AI needs its {what} on Cloud Storage; got {value!r}. Nothing was "
                    "sent or billed. Set `state_uri` to a directory 'gs://…'."
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
            **self._labels,
        }
        return self._http.create(self._jobs, body, display_name, job_of)

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
        return job_of(reply)


def job_of(reply: Mapping[str, Any]) -> BatchJob | None:
    """Returns the job that a `BatchPredictionJob` describes; `None` if it has no valid name."""
    if not _NAME.fullmatch(name := str_of(reply.get("name"))):
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
        error=error_of(reply.get("error")),
        results=(directory,) if phase in ENDED and directory.startswith("gs://") else (),
    )
