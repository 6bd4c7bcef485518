"""Messages of batch inference, and the resources that both of Google's APIs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from llmbeam_sandbox.batch_inference.state import Job
from llmbeam_sandbox.core.responses import Reply, google_error, read_object, send
from llmbeam_sandbox.core.rest import RestError
from llmbeam_sandbox.models.calls import RefusedError

ROW_FAILED = "Internal error encountered."
EMPTY = {"@type": "type.googleapis.com/google.protobuf.Empty"}
# Titles of HTTP, as in the sample of an error in
# docs.cloud.google.com/vertex-ai/generative-ai/docs/multimodal/batch-prediction-from-cloud-storage.
_TITLES = {400: "Bad Request", 404: "Not Found", 429: "Too Many Requests", 500: "Internal Server Error"}


def failed_row() -> Reply:
    """Returns the reply of a row whose fate is to fail."""
    return google_error(500, ROW_FAILED)


def row_status(reply: Reply) -> str:
    """Returns the `status` of a row of Vertex AI: "" for an answer."""
    if reply.http_status == 200:
        return ""
    return f"{_TITLES.get(reply.http_status, f'HTTP {reply.http_status}')}: {reply.body.decode()}"


def row_error(reply: Reply) -> dict[str, Any]:
    """Returns the `google.rpc.Status` of a row of the Developer API."""
    error = read_object(reply.body)["error"]
    return {"code": error["code"], "message": error["message"], "status": error["status"]}


def authenticated(check: Callable[[web.Request], None], handler: Handler) -> Handler:
    """Returns a handler that calls `check`, which may raise `RefusedError`, before `handler`.

    The bytes of an upload need no key: they are sent to the secret address of its session.
    """

    async def serve(request: web.Request) -> web.StreamResponse:
        try:
            if "upload_id" not in request.query:
                check(request)
        except RefusedError as refused:
            return await send(request, refused.reply)
        return await handler(request)

    return serve


def ended(job: Job, verb: str) -> RestError:
    """Returns the refusal to change a job that has ended."""
    return RestError(400, f"The job {job.name} has ended and cannot be {verb}.", "FAILED_PRECONDITION")


def not_ended(job: Job) -> RestError:
    """Returns the refusal to delete a job that has not ended."""
    return RestError(400, f"The job {job.name} has not ended; cancel it first.", "FAILED_PRECONDITION")
