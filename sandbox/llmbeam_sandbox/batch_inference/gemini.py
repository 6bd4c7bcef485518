"""The Gemini Developer API's batches of texts and of embeddings, inline and from files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from aiohttp import web

from llmbeam_sandbox.batch_inference.files import GEMINI_FILE_METHODS, GeminiFiles
from llmbeam_sandbox.batch_inference.lines import Row, encoded_lines, read_lines
from llmbeam_sandbox.batch_inference.responses import (
    authenticated,
    ended,
    failed_row,
    row_error,
)
from llmbeam_sandbox.batch_inference.state import Batches, Job, Jobs, Result, State
from llmbeam_sandbox.core.backend import Backend
from llmbeam_sandbox.core.clock import timestamp
from llmbeam_sandbox.core.methods import Methods
from llmbeam_sandbox.core.responses import Reply, encoded, json_reply, read_object
from llmbeam_sandbox.core.rest import (
    STATUSES,
    RestCall,
    RestError,
    Route,
    Service,
    StatusWording,
    page,
)
from llmbeam_sandbox.models.calls import RefusedError
from llmbeam_sandbox.models.embedding.gemini import RowDialect
from llmbeam_sandbox.models.gemini import GeminiDialect
from llmbeam_sandbox.models.server import ModelServer

METHODS = Methods(
    names=(
        "batch.geminiRow",
        "gemini.batches.cancel",
        "gemini.batches.create",
        "gemini.batches.delete",
        "gemini.batches.get",
        "gemini.batches.list",
        *GEMINI_FILE_METHODS,
    )
)
LIFETIME_SECONDS = 48 * 3600.0
MAX_INLINE_BYTES = 20 * 1024 * 1024
"""Source of both: ai.google.dev/gemini-api/docs/batch-api."""
_TYPE = "type.googleapis.com/google.ai.generativelanguage.v1main."
_EMBED = "asyncBatchEmbedContent"
_VERBS = f"batchGenerateContent|{_EMBED}"
_BATCH = r"/(?:v1beta|v1alpha)/batches/(?P<batch>[^/:]+)"
_STATES: Mapping[State, str] = {"queued": "PENDING", "cancelling": "RUNNING", "partially_succeeded": "SUCCEEDED"}
_ERRORS: Mapping[State, tuple[int, str]] = {
    "cancelled": (1, "The batch was cancelled."),
    "expired": (4, "The batch has expired before it was completed."),
}
_FAILURE = "Internal error encountered."
_EXHAUSTED = "Resource has been exhausted (e.g. check quota)."
_WORDING = StatusWording(
    reasons=STATUSES,
    messages={500: _FAILURE, 503: "The service is currently unavailable."},
    rate_limit=RestError(429, _EXHAUSTED),
)


class GeminiBatches:
    """The methods of batches and files.

    Args:
        backend: Faults, request log and clock.
        batches: Timeline and settings of jobs.
        models: Answers the rows.
    """

    def __init__(self, backend: Backend, batches: Batches, models: ModelServer) -> None:
        self._batches, self._models = batches, models
        self.jobs = Jobs(batches.timeline, returns_expired=False)
        self.files = GeminiFiles(batches.timeline)
        route = self.files.route
        create = rf"/(?P<version>v1beta|v1alpha)/models/(?P<model>[^/:]+):(?P<verb>{_VERBS})"
        routes: list[Route] = [
            route("POST", create, "gemini.batches.create", self._create),
            route("GET", "/(?:v1beta|v1alpha)/batches", "gemini.batches.list", self._list),
            route("GET", _BATCH, "gemini.batches.get", lambda call: json_reply(self._shown(self._job(call)))),
            route("POST", f"{_BATCH}:cancel", "gemini.batches.cancel", self._cancel),
            route("DELETE", _BATCH, "gemini.batches.delete", self._delete),
            *self.files.routes(),
        ]
        self.service = Service(backend, _WORDING, routes, is_slow=True)

    def clear(self) -> None:
        """Removes all jobs and files."""
        self.jobs.clear()
        self.files.clear()

    def dialect(self, model: str, version: str = "v1beta", *, embeds: bool = False) -> GeminiDialect:
        """Returns the dialect of the rows of a model."""
        return (RowDialect if embeds else GeminiDialect)(
            method="batch.geminiRow",
            model=model,
            version=version,
            publisher="",
            project="",
            is_sse=False,
            input_token_limit=self._models.settings.input_token_limit,
            any_model=self._models.settings.any_model,
        )

    def _create(self, call: RestCall) -> Reply:
        embeds, settings = call.names["verb"] == _EMBED, self._batches.settings
        dialect = self.dialect(call.names["model"], call.names["version"], embeds=embeds)
        try:
            dialect.check_model()
        except RefusedError as error:
            raise RestError(404, dialect.not_found()) from error
        fields = _object(call.fields().get("batch"))
        source = _object(fields.get("inputConfig"))
        # google-genai sends the name of Python for embeddings.
        source["fileName"] = source.get("fileName", source.get("file_name"))
        lines, fault = self._lines(source, len(call.body))
        tokens = self._tokens(dialect, lines)
        is_full = len(self.jobs.active) >= settings.max_jobs
        if is_full or not self.jobs.is_room_for(dialect.model, tokens, settings):
            raise RestError(429, _EXHAUSTED)

        def answer(row: Row) -> Reply:
            return failed_row() if row.fate == "failed" else self._models.answer_row(dialect, _body(row.line))

        serial, now = self._batches.next_serial(), self._batches.timeline.now()
        job = Job(
            name=f"batches/{serial:08d}llmbeam",
            model=dialect.model,
            fields={**fields, "@type": f"{_TYPE}{'EmbedContent' if embeds else 'GenerateContent'}Batch"},
            settings=settings,
            created_at=now,
            lifetime_seconds=LIFETIME_SECONDS,
            rows=self._batches.rows(lines, serial),
            input_fault=fault,
            input_tokens=tokens,
            answer=answer,
            deliver=self._deliver_file
            if source["fileName"]
            else partial(_deliver_inline, field="inlinedEmbedContentResponses" if embeds else "inlinedResponses"),
        )
        self.jobs.submit(job)
        return json_reply(self._shown(job))

    def _lines(self, source: Mapping[str, Any], size: int) -> tuple[list[dict[str, Any]], str]:
        """Returns the requests and, if the file of them cannot be read, why."""
        if name := source["fileName"]:
            try:
                return read_lines(self.files.named(str(name)).data, "request"), ""
            except ValueError as error:
                return [], f"Failed to read {name}: {error}"
        lines = [_object(line) for line in _object(source.get("requests")).get("requests") or ()]
        if not lines or any(not line.get("request") for line in lines):
            raise RestError(
                400, "* GenerateContentBatch.input_config: requests or a file_name must be specified\n"
            )
        if size > MAX_INLINE_BYTES:
            raise RestError(400, f"Request payload size exceeds the limit: {MAX_INLINE_BYTES} bytes.")
        return lines, ""

    def _tokens(self, dialect: GeminiDialect, lines: list[dict[str, Any]]) -> int:
        if self._batches.settings.max_enqueued_tokens is None:
            return 0
        return sum(self._models.count_row(dialect, _body(line)) for line in lines)

    def _deliver_file(self, job: Job) -> None:
        results = ((result.row, {"key": result.row.line.get("key"), **_outcome(result)}) for result in job.results)
        data = b"".join(line + b"\n" for line in encoded_lines(results))
        name = f"files/batch-{job.name.removeprefix('batches/')}"
        self.files.add(name, data, "", purpose="batch_output")
        job.output = {"responsesFile": name}

    def _job(self, call: RestCall) -> Job:
        name = f"batches/{call.names['batch']}"
        if name not in self.jobs.all:
            raise RestError(404, f"Requested entity was not found: {name}.")
        return self.jobs.all[name]

    def _list(self, call: RestCall) -> Reply:
        shown = [self._shown(job) for job in reversed(self.jobs.all.values())]
        operations, token = page(call, shown, default=50, size="pageSize")
        return json_reply({"operations": operations, **token} if operations else {})

    def _cancel(self, call: RestCall) -> Reply:
        job = self._job(call)
        if not job.is_active:
            raise ended(job, "cancelled")
        self.jobs.cancel(job)
        return json_reply({})

    def _delete(self, call: RestCall) -> Reply:
        # Not refused for one that has not ended: "It does not cancel the operation", ai.google.dev/api/batch-api.
        del self.jobs.all[self._job(call).name]
        return json_reply({})

    def _shown(self, job: Job) -> dict[str, Any]:
        """Returns a job as the API returns it: an operation."""
        finished = job.finished_rows(self._batches.timeline.now())
        state = _STATES.get(job.state, job.state.upper())
        metadata = {
            "@type": job.fields["@type"],
            "name": job.name,
            "model": f"models/{job.model}",
            "displayName": job.fields.get("displayName", ""),
            "createTime": timestamp(job.created_at),
            "updateTime": timestamp(job.ended_at or job.started_at or job.created_at),
            "state": f"BATCH_STATE_{state}",
            "batchStats": {
                "requestCount": str(len(job.rows)),
                "successfulRequestCount": str(finished - job.failed_rows),
                "failedRequestCount": str(job.failed_rows),
                "pendingRequestCount": str(len(job.rows) - finished),
            },
        }
        if job.settings.echoes_input:
            metadata["inputConfig"] = job.fields["inputConfig"]
        if job.is_active:
            return {"name": job.name, "metadata": metadata}
        metadata["endTime"] = timestamp(job.ended_at or 0.0)
        shown = {"name": job.name, "metadata": metadata, "done": True}
        if job.output:
            metadata["output"] = job.output
            return {**shown, "response": {"@type": f"{job.fields['@type']}Output", **job.output}}
        code, message = _ERRORS.get(job.state, (3 if job.input_fault else 13, job.error or _FAILURE))
        return {**shown, "error": {"code": code, "message": message}}


def routes(batches: GeminiBatches) -> list[web.RouteDef]:
    """Returns the routes of batches and files."""
    version = "/{version:v1beta|v1alpha}"
    serve = authenticated(batches.dialect("").authenticate, batches.service.serve)
    return [
        web.post(f"{version}/models/{{model:[^/:]+}}:{{verb:{_VERBS}}}", serve),
        *(web.route("*", f"{version}/{kind}{{tail:(?:/.*)?}}", serve) for kind in ("batches", "files")),
        web.post(f"/upload{version}/files", serve),
        web.get(f"/download{version}/files/{{tail:.*}}", serve),
    ]


def _object(value: object) -> dict[str, Any]:
    if value is not None and not isinstance(value, dict):
        raise RestError(400, f"Invalid JSON payload received. Expected an object; got {value!r}.")
    return value or {}


def _body(line: Mapping[str, Any]) -> bytes:
    return encoded(line["request"])


def _outcome(result: Result) -> dict[str, Any]:
    if result.is_answered:
        return {"response": read_object(result.reply.body)}
    return {"error": row_error(result.reply)}


def _deliver_inline(job: Job, field: str) -> None:
    """Sets the results; a malformed one is an empty object, as a list has no lines."""
    items = []
    for result in job.results:
        metadata = result.row.line.get("metadata")
        whole = {**_outcome(result), **({"metadata": metadata} if metadata else {})}
        if result.row.fate != "missing":
            items.append({} if result.row.fate == "malformed" else whole)
    job.output = {field: {"inlinedResponses": items}}
