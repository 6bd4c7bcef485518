"""OpenAI's `/v1/batches`, from and to files."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from aiohttp import web

from llmbeam_sandbox.batch_inference.files import OPENAI_FILE_METHODS, OpenAIFiles, openai_page
from llmbeam_sandbox.batch_inference.lines import Row, encoded_lines, read_lines
from llmbeam_sandbox.batch_inference.responses import authenticated
from llmbeam_sandbox.batch_inference.state import Batches, Job, Jobs, State
from llmbeam_sandbox.core.backend import Backend
from llmbeam_sandbox.core.methods import Methods
from llmbeam_sandbox.core.responses import Reply, encoded, json_reply, read_object, send
from llmbeam_sandbox.core.rest import NOT_IMPLEMENTED, RestCall, RestError, Route, Service, Wording
from llmbeam_sandbox.models.embedding.openai import EmbeddingsDialect
from llmbeam_sandbox.models.openai import OpenAIDialect, openai_error
from llmbeam_sandbox.models.server import ModelServer

METHODS = Methods(
    names=(
        "batch.openaiRow",
        "openai.batches.cancel",
        "openai.batches.create",
        "openai.batches.list",
        "openai.batches.retrieve",
        *OPENAI_FILE_METHODS,
    )
)
MAX_ROWS = 50_000
LIFETIME_SECONDS = 24 * 3600.0
"""Source of both: platform.openai.com/docs/guides/batch."""
_DIALECTS: Mapping[str, type[OpenAIDialect]] = {
    "/v1/chat/completions": OpenAIDialect,
    "/v1/embeddings": EmbeddingsDialect,
}
_BATCH = "/v1/batches/(?P<batch>[^/]+)"
_STATES: Mapping[State, str] = {
    "queued": "validating",
    "running": "in_progress",
    "succeeded": "completed",
    "partially_succeeded": "completed",
}
_ENDS = ("completed", "failed", "expired", "cancelled")
_EXPIRED = {
    "code": "batch_expired",
    "message": "This request could not be executed before the completion window expired.",
}
_FAILURE = "The server had an error while processing your batch. Sorry about that!"


class _Wording(Wording):
    """Errors in the format of OpenAI."""

    def reply(self, error: RestError) -> Reply:
        """Returns an error as JSON."""
        return openai_error(error.http_status, error.message, code=error.reason or None)


_WORDING = _Wording(reasons={}, messages={}, rate_limit=RestError(429, "", "rate_limit_exceeded"))


class OpenAIBatches:
    """The methods of batches and files.

    Args:
        backend: Faults, request log and clock.
        batches: Timeline and settings of jobs.
        models: Answers the rows.
    """

    def __init__(self, backend: Backend, batches: Batches, models: ModelServer) -> None:
        self._batches, self._models = batches, models
        self._serial = itertools.count(1)
        self.jobs = Jobs(batches.timeline, returns_expired=True)
        self.files = OpenAIFiles(batches)
        route = self.files.route
        routes: list[Route] = [
            route("POST", "/v1/batches", "openai.batches.create", self._create),
            route("GET", "/v1/batches", "openai.batches.list", self._list),
            route("GET", _BATCH, "openai.batches.retrieve", lambda call: self._shown(self._job(call))),
            route("POST", f"{_BATCH}/cancel", "openai.batches.cancel", self._cancel),
            *self.files.routes(),
        ]
        self.service = Service(backend, _WORDING, routes, is_slow=True)

    def clear(self) -> None:
        """Removes all jobs and files."""
        self.jobs.clear()
        self.files.clear()

    def has(self, path: str) -> bool:
        """Returns whether the server has a path now."""
        names = path.split("/")
        return not {names[2], names[-1]} & {*self._batches.settings.without} & {"batches", "files", "cancel"}

    def dialect(self, endpoint: str) -> OpenAIDialect:
        """Returns the dialect of the rows for an endpoint."""
        settings = self._models.settings
        return _DIALECTS[endpoint](
            method="batch.openaiRow",
            api_key=settings.openai_api_key,
            input_token_limit=settings.input_token_limit,
            any_model=settings.any_model,
        )

    def _create(self, call: RestCall) -> Reply:
        fields = call.fields()
        endpoint, file_id = str(fields.get("endpoint")), str(fields.get("input_file_id"))
        if endpoint not in _DIALECTS:
            raise RestError(400, f"Invalid value: {endpoint!r}. Supported values are: {', '.join(_DIALECTS)}.")
        if fields.get("completion_window") != "24h":
            raise RestError(400, "Invalid value for 'completion_window'. Supported values are: '24h'.")
        if file_id not in self.files.all:
            raise RestError(400, f"Invalid 'input_file_id': no such File object: {file_id}.")
        dialect, settings = self.dialect(endpoint), self._batches.settings
        lines, code, fault = _lines(self.files.all[file_id].data, endpoint)
        model = str(lines[0]["body"].get("model") or "") if lines else ""
        tokens = (
            sum(self._models.count_row(dialect, _body(line)) for line in lines)
            if settings.max_enqueued_tokens is not None
            else 0
        )
        if not self.jobs.is_room_for(model, tokens, settings):
            lines, tokens, code = [], 0, "token_limit_exceeded"
            fault = (
                f"Enqueued token limit reached for {model} in organization org-sandbox. Limit: "
                f"{settings.max_enqueued_tokens:,} enqueued tokens. Please try again once some in_progress "
                "batches have been completed."
            )

        def answer(row: Row) -> Reply:
            return openai_error(500) if row.fate == "failed" else self._models.answer_row(dialect, _body(row.line))

        serial, now = self._batches.next_serial(), self._batches.timeline.now()
        job = Job(
            name=f"batch_{serial:024x}",
            model=model,
            fields=fields,
            settings=settings,
            created_at=now,
            lifetime_seconds=LIFETIME_SECONDS,
            rows=self._batches.rows(lines, serial),
            input_fault=fault,
            error_code=code,
            input_tokens=tokens,
            answer=answer,
            deliver=self._deliver,
        )
        self.jobs.submit(job)
        return self._shown(job)

    def _deliver(self, job: Job) -> None:
        good = [(result.row, self._line(result.row, result.reply)) for result in job.results if result.is_answered]
        bad = [
            (result.row, self._line(result.row, result.reply)) for result in job.results if not result.is_answered
        ]
        if "error_file" in job.settings.without:
            good, bad = [*good, *bad], []
        if job.state == "expired":
            bad += [(row, self._line(row, None)) for row in job.rows[len(job.results) :]]
        if good:
            job.output["output_file_id"] = self._write(job, "output", good)
        if bad:
            job.output["error_file_id"] = self._write(job, "error", bad)

    def _line(self, row: Row, reply: Reply | None) -> dict[str, Any]:
        """Returns the line of a row; without a reply, that of a row which was not executed in time."""
        number = f"{next(self._serial):024x}"
        response = reply and {
            "status_code": reply.http_status,
            "request_id": f"req_{number}",
            "body": read_object(reply.body),
        }
        return {
            "id": f"batch_req_{number}",
            "custom_id": row.line["custom_id"],
            "response": response,
            "error": None if reply else _EXPIRED,
        }

    def _write(self, job: Job, kind: str, results: Iterable[tuple[Row, Mapping[str, Any]]]) -> str:
        data = b"".join(line + b"\n" for line in encoded_lines(results))
        label = f"{job.name}_{kind}.jsonl"
        number = job.name.removeprefix("batch_")
        return self.files.add(f"file-{kind}{number}", data, label, purpose="batch_output").name

    def _job(self, call: RestCall) -> Job:
        if call.names["batch"] not in self.jobs.all:
            raise RestError(404, f"No batch found with id '{call.names['batch']}'.")
        return self.jobs.all[call.names["batch"]]

    def _list(self, call: RestCall) -> Reply:
        now = self._batches.timeline.now()
        found = [_resource(job, now) for job in reversed(self.jobs.all.values())]
        return json_reply(openai_page(call, found, 20))

    def _cancel(self, call: RestCall) -> Reply:
        job = self._job(call)
        if not job.is_active:
            status = _status(job, self._batches.timeline.now())
            raise RestError(409, f"Cannot cancel a batch with status '{status}'.")
        self.jobs.cancel(job)
        return self._shown(job)

    def _shown(self, job: Job) -> Reply:
        return json_reply(_resource(job, self._batches.timeline.now()))


def routes(batches: OpenAIBatches) -> list[web.RouteDef]:
    """Returns the routes of batches and files."""
    serve = authenticated(batches.dialect("/v1/chat/completions").authenticate, batches.service.serve)

    async def served(request: web.Request) -> web.StreamResponse:
        if batches.has(request.path):
            return await serve(request)
        return await send(request, openai_error(404, f"{NOT_IMPLEMENTED}{request.method} {request.path}"))

    return [web.route("*", f"/v1/{kind}{{tail:(?:/.*)?}}", served) for kind in ("batches", "files")]


def _body(line: Mapping[str, Any]) -> bytes:
    # A stream cannot be in a line.
    return encoded({**line["body"], "stream": False})


def _lines(data: bytes, endpoint: str) -> tuple[list[dict[str, Any]], str, str]:
    """Returns the requests of a file and, if it is refused, the code and the message of the error."""
    try:
        lines = read_lines(data, "custom_id", "method", "url", "body")
    except ValueError as error:
        return [], "invalid_json_line", f"This line is not parseable as valid JSON. {error}"
    if any(not isinstance(line["body"], dict) for line in lines):
        return [], "invalid_json_line", "The body of a request is not an object."
    if any(not isinstance(line["custom_id"], str) or line["method"] != "POST" for line in lines):
        return [], "invalid_request", "Each request must have a string as `custom_id`, and the `method` POST."
    if len({str(line["body"].get("model")) for line in lines}) > 1:
        return [], "mismatched_model", "All requests of a file must have the same model."
    if any(line["url"] != endpoint for line in lines):
        return [], "mismatched_url", "The URL provided for this request does not match the batch endpoint."
    if len({line["custom_id"] for line in lines}) < len(lines):
        return [], "duplicate_custom_id", "The custom_id of a request is a duplicate of another one."
    if not 1 <= len(lines) <= MAX_ROWS:
        return [], "invalid_request", f"The file must have 1 to {MAX_ROWS} requests; it has {len(lines)}."
    return lines, "", ""


def _status(job: Job, now: float) -> str:
    if job.state == "running" and job.is_nearly_done(now):
        return "finalizing"
    return _STATES.get(job.state, job.state)


def _resource(job: Job, now: float) -> dict[str, Any]:
    status, finished = _status(job, now), job.finished_rows(now)
    error = {
        "code": job.error_code or "server_error",
        "message": job.error or _FAILURE,
        "line": None,
        "param": None,
    }
    times = {
        "created_at": job.created_at,
        "in_progress_at": job.started_at,
        "cancelling_at": job.stopped_at,
        "expires_at": job.expires_at,
        **{f"{end}_at": job.ended_at if status == end else None for end in _ENDS},
    }
    return {
        "id": job.name,
        "object": "batch",
        "endpoint": job.fields["endpoint"],
        "errors": {"object": "list", "data": [error]} if status == "failed" else None,
        "input_file_id": job.fields["input_file_id"],
        "completion_window": job.fields["completion_window"],
        "status": status,
        "output_file_id": job.output.get("output_file_id"),
        "error_file_id": job.output.get("error_file_id"),
        **{name: None if at is None else int(at) for name, at in times.items()},
        "request_counts": {
            "total": len(job.rows),
            "completed": finished - job.failed_rows,
            "failed": job.failed_rows,
        },
        "metadata": None if "metadata" in job.settings.without else job.fields.get("metadata"),
    }
