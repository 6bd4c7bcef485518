"""HTTP responses: their bodies, and how they are sent, whole or damaged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from llmbeam_sandbox.core.faults import Fault
from llmbeam_sandbox.core.hold import Hold

JSON_TYPE = "application/json; charset=UTF-8"
EVENT_STREAM_TYPE = "text/event-stream"
HTML_PAGE = b"<!DOCTYPE html>\n<html><head><title>Error</title></head><body><h1>Gateway</h1></body></html>\n"
_GONE_CHECK_SECONDS = 0.05
ERROR_TYPE = "type.googleapis.com/google.rpc."
# Source: google/rpc/code.proto, "HTTP Mapping" of each code.
_GOOGLE_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_GOOGLE_MESSAGE = {
    429: "Resource has been exhausted (e.g. check quota).",
    500: "An internal error has occurred. Please retry or report in "
    "https://developers.generativeai.google/guide/troubleshooting",
    503: "The model is overloaded. Please try again later.",
    504: "Deadline expired before operation could complete.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An HTTP response before it is sent.

    Attributes:
        http_status: Status of the response.
        chunks: Body; in several chunks only when `is_streamed`.
        content_type: Value of `Content-Type`.
        headers: Other headers.
        is_streamed: Whether it is sent with chunked transfer encoding, without a `Content-Length`.
    """

    http_status: int = 200
    chunks: tuple[bytes, ...]
    content_type: str = JSON_TYPE
    headers: Mapping[str, str] = field(default_factory=dict)
    is_streamed: bool = False

    @property
    def body(self) -> bytes:
        """The body as one string of bytes."""
        return b"".join(self.chunks)

    def all_headers(self) -> dict[str, str]:
        """Returns the headers including `Content-Type`."""
        return {"Content-Type": self.content_type, **self.headers}


def json_reply(value: object, *, http_status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    """Returns `value` as a JSON reply."""
    return Reply(http_status=http_status, chunks=(encoded(value),), headers=headers or {})


def encoded(value: object) -> bytes:
    """Returns `value` as UTF-8 JSON, non-ASCII characters as they are."""
    return json.dumps(value, ensure_ascii=False).encode()


def read_object(body: bytes) -> dict[str, Any]:
    """Returns the JSON object in `body`.

    Raises:
        ValueError: It is not JSON, or not an object.
    """
    value = json.loads(body)
    if not isinstance(value, dict):
        raise ValueError("Root element must be a message.")
    return value


def google_error(http_status: int, message: str = "", details: tuple[Mapping[str, Any], ...] = ()) -> Reply:
    """Returns an error reply; an empty message gives the service's usual one."""
    error: dict[str, Any] = {
        "code": http_status,
        "message": message or _GOOGLE_MESSAGE.get(http_status, f"HTTP {http_status}."),
        "status": _GOOGLE_STATUS.get(http_status, "UNKNOWN"),
    }
    if details:
        error["details"] = list(details)
    return json_reply({"error": error}, http_status=http_status)


def error_info(reason: str, **metadata: str) -> dict[str, Any]:
    """Returns a `google.rpc.ErrorInfo` detail."""
    return {
        "@type": f"{ERROR_TYPE}ErrorInfo",
        "reason": reason,
        "domain": "googleapis.com",
        "metadata": metadata,
    }


async def send(
    request: web.Request, reply: Reply, *, fault: Fault | None = None, seconds: float = 0.0
) -> web.StreamResponse:
    """Sends a reply, or the part of it that the fault leaves.

    Args:
        request: The request to answer.
        reply: The reply to send.
        fault: Fault of the call: `drop` and `disconnect` close the connection; other kinds have no effect here.
        seconds: Duration over which a streamed reply is spread, in seconds.
    """
    if fault is not None and fault.kind in ("drop", "disconnect"):
        return await _send_part(request, reply, len(reply.body) // 2 if fault.kind == "drop" else 0)
    if not reply.is_streamed:
        return web.Response(status=reply.http_status, body=reply.body, headers=reply.all_headers())
    response = web.StreamResponse(status=reply.http_status, headers=reply.all_headers())
    await response.prepare(request)
    for chunk in reply.chunks:
        await asyncio.sleep(seconds / len(reply.chunks))
        await response.write(chunk)
    await response.write_eof()
    return response


async def _send_part(request: web.Request, reply: Reply, size: int) -> web.StreamResponse:
    """Sends headers with the full `Content-Length` and `size` bytes, then drops the connection."""
    response = web.StreamResponse(status=reply.http_status, headers=reply.all_headers())
    response.content_length = len(reply.body)
    if size:
        await response.prepare(request)
        await response.write(reply.body[:size])
    if request.transport is not None:
        request.transport.abort()
    return response


async def until_released(request: web.Request, hold: Hold) -> bool:
    """Waits for the release of a hold, and returns whether the client is still connected."""
    hold.enter()
    try:
        while not hold.is_released and not _is_gone(request):  # noqa: ASYNC110 - released from other threads
            await asyncio.sleep(_GONE_CHECK_SECONDS)
    finally:
        hold.leave()
    return not _is_gone(request)


def _is_gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


async def until_gone(request: web.Request) -> None:
    """Waits until the client has closed the connection; a stopping server cancels the wait.

    aiohttp informs a running handler of neither, unless it cancels every handler whose client has disconnected;
    the real services complete and bill those requests.
    """
    while not _is_gone(request):  # noqa: ASYNC110 - no such event
        await asyncio.sleep(_GONE_CHECK_SECONDS)
