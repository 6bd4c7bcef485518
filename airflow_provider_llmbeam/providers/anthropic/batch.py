"""Batch inference of Claude: Message Batches of Anthropic, and batch prediction on Vertex AI.

Fields as in anthropic 2.14 (`types.messages`, `resources.messages.batches`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import IO, Any, cast

import requests

from airflow_provider_llmbeam.providers.batch import (
    BatchJob,
    BatchLimits,
    BatchPhase,
    BatchProvider,
    OpenFile,
    UploadedFile,
)
from airflow_provider_llmbeam.providers.rest import FileBody, RestClient
from airflow_provider_llmbeam.providers.vertex_batch import VertexAIBatches
from airflow_provider_llmbeam.spec.model import AnthropicModel
from airflow_provider_llmbeam.transport.server_reply import count_of, mapping_of, str_of, time_of

#: Requests and bytes of one Message Batch. Source: platform.claude.com/docs/en/build-with-claude/batch-processing
#: (2026-11-28: 100,000 requests or 256 MB; it expires after 24 hours, and its results are kept for 29 days)
_MAX_REQUESTS, _MAX_BYTES = 100_000, 256_000_000
#: Jobs that run at once in a project on Vertex AI, unless more are granted.
#: Source: docs.cloud.google.com/gemini-enterprise-agent-platform/models/partner-models/claude/batch (2026-11-28)
_MAX_VERTEX_JOBS = 4

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_HEAD, _TAIL = b'{"requests":[', b"]}"


def open_batches(
    model: AnthropicModel, http: RestClient, *, output_uri: str, embeds: bool, kms_key_name: str | None
) -> BatchProvider:
    """See `providers.batch`."""
    if not model.project:
        return MessageBatches(model, http)
    batches = VertexAIBatches(model, output_uri, http, kms_key_name)
    batches.limits = replace(batches.limits, max_rows=_MAX_REQUESTS, max_jobs=_MAX_VERTEX_JOBS)
    return batches


class MessageBatches(BatchProvider):
    """Batch inference of a Claude model by Anthropic's API, whose requests are sent inline.

    A line of the request file is `{"custom_id": …, "params": …}`, one of the results `{"custom_id", "result"}`.

    Args:
        model: Model without `project`.
        http: Requests to the API.
    """

    _NAME = _NAME
    _JOBS = "data"
    _CANCEL = "/cancel"
    has_display_names = False
    limits = BatchLimits(max_rows=_MAX_REQUESTS, max_bytes=_MAX_BYTES - len(_HEAD + _TAIL))

    def __init__(self, model: AnthropicModel, http: RestClient) -> None:
        jobs = f"{model.address}/messages/batches"
        super().__init__(http, jobs=jobs, root=jobs)
        self._address = model.address

    def submit(self, display_name: str, uri: str, open_file: OpenFile, size: int) -> BatchJob:
        """See `BatchProvider`; the display name is not sent."""

        def post() -> requests.Response:
            with open_file(uri) as file:
                body = FileBody(cast("IO[bytes]", _Items(file, size)), size, _HEAD, _TAIL)
                return self._http.send_file(self._jobs, {"Content-Type": "application/json"}, data=body)

        return self._create(display_name, post)

    def delete(self, job: BatchJob) -> None:
        """See `BatchProvider`."""
        self._http.delete(self._url(job.name))

    def uploads(self, prefix: str) -> list[UploadedFile]:
        """Returns nothing: requests are sent inline."""
        return []

    def delete_upload(self, name: str) -> None:
        """Does nothing: there are no uploaded files."""

    def results(self, job: BatchJob) -> Iterator[tuple[str, Iterator[bytes]]]:
        """See `BatchProvider`."""
        for path in job.results:
            # At the address of the model alone, which has the key; a gateway passes on the address of Anthropic.
            yield path, self._http.download(f"{self._address}/{path}")

    def _recent(
        self, replies: Iterator[Mapping[str, Any]], since: float | None = None
    ) -> Iterator[Mapping[str, Any]]:
        """See `BatchProvider`; the list has the newest batch first."""
        for reply in replies:
            created_at = time_of(reply.get("created_at"))
            if since is not None and created_at is not None and created_at < since:
                return
            yield reply

    def _query(self, prefix: str) -> Mapping[str, str]:
        return {"limit": "100"}

    def _next_page(self, page: Mapping[str, Any]) -> Mapping[str, str]:
        last = str_of(page.get("last_id"))
        return {"after_id": last} if page.get("has_more") is True and last else {}

    def _display_name(self, reply: Mapping[str, Any]) -> str:
        return ""

    def _job_of(self, reply: Mapping[str, Any]) -> BatchJob | None:
        return job_of(reply)


class _Items:
    """A request file as the items of a JSON list: with commas in place of the line breaks between its lines."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._left = size

    def read(self, max_bytes: int) -> bytes:
        """Returns the next piece; an empty one at the end."""
        piece = self._file.read(max_bytes).replace(b"\n", b",")
        self._left -= len(piece)
        return piece.removesuffix(b",") + b" " if piece.endswith(b",") and not self._left else piece


def job_of(reply: Mapping[str, Any]) -> BatchJob | None:
    """Returns the job that a `MessageBatch` describes; `None` if it has no valid id."""
    if not _NAME.fullmatch(name := str_of(reply.get("id"))):
        return None
    state, counts = str_of(reply.get("processing_status")), mapping_of(reply.get("request_counts"))
    numbers = {each: count_of(counts.get(each)) or 0 for each in ("succeeded", "errored", "canceled", "expired")}
    path = str_of(reply.get("results_url")).partition("/v1/")[2]
    return BatchJob(
        name=name,
        display_name="",
        state=state,
        phase=_phase(state, numbers),
        created_at=time_of(reply.get("created_at")) or 0.0,
        ended_at=time_of(reply.get("ended_at")),
        answered=numbers["succeeded"],
        failed=numbers["errored"],
        rows=sum(numbers.values()) + (count_of(counts.get("processing")) or 0),
        results=(path,) if state == "ended" and path else (),
    )


def _phase(state: str, numbers: Mapping[str, int]) -> BatchPhase:
    """Returns the phase of a batch: a part of its requests may have ended in each way."""
    if state != "ended":
        return "cancelling" if state == "canceling" else "running"
    if numbers["canceled"]:
        return "cancelled"
    if numbers["succeeded"]:
        return "partial" if numbers["errored"] or numbers["expired"] else "succeeded"
    return "expired" if numbers["expired"] else "failed"
