"""What goes over the wire, whole or broken."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from aiohttp import web

from airflow_provider_llmbeam.sandbox.core.faults import Fault, Method
from airflow_provider_llmbeam.sandbox.core.hold import Hold
from airflow_provider_llmbeam.sandbox.models.answers import Answer
from airflow_provider_llmbeam.sandbox.models.quota import Rejection
from airflow_provider_llmbeam.sandbox.models.schema import Schema

JSON_TYPE = "application/json; charset=UTF-8"
EVENT_STREAM_TYPE = "text/event-stream"
HTML_PAGE = b"<!DOCTYPE html>\n<html><head><title>Error</title></head><body><h1>Gateway</h1></body></html>\n"
_GONE_CHECK_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """One request to a model, the same for every API.

    Attributes:
        model: As asked for.
        prompt: All user text, parts joined by a line break.
        system: The system text, or "".
        input_tokens: Of `system` and `prompt`.
        prompt_sha256: Of `system` and `prompt`.
        schema: What the answer has to satisfy; None asks for text.
        is_enum: Whether the answer is a bare enum value, not JSON.
        max_output_tokens: None is no limit.
        is_streamed: Whether the answer comes in pieces.
        has_usage: Whether a streamed answer reports its tokens.
        is_blocked: Whether the emulated safety filter keeps the model from answering.
        texts: What is embedded, each by itself; `prompt` then holds them all.
        dimensions: Of the vectors; None is the model's own number.
        is_base64: Whether the vectors come as base64 of 32-bit numbers.
        is_raw: Whether the answer is told without the prompt before it.
        parts: What is answered each by itself; `prompt` then holds them all.
    """

    model: str
    prompt: str
    system: str
    input_tokens: int
    prompt_sha256: str
    schema: Schema | None = None
    is_enum: bool = False
    max_output_tokens: int | None = None
    is_streamed: bool = False
    has_usage: bool = True
    is_blocked: bool = False
    texts: tuple[str, ...] = ()
    dimensions: int | None = None
    is_base64: bool = False
    is_raw: bool = False
    parts: tuple[ModelCall, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An HTTP response before it is sent.

    Attributes:
        http_status: As sent.
        chunks: The body; more than one chunk only when `is_streamed`.
        content_type: Header value.
        headers: Any others.
        is_streamed: Sent with chunked transfer encoding, without a `Content-Length`.
    """

    http_status: int = 200
    chunks: tuple[bytes, ...]
    content_type: str = JSON_TYPE
    headers: Mapping[str, str] = field(default_factory=dict)
    is_streamed: bool = False

    @property
    def body(self) -> bytes:
        """All chunks in one."""
        return b"".join(self.chunks)

    def all_headers(self) -> dict[str, str]:
        """Return the headers including `Content-Type`."""
        return {"Content-Type": self.content_type, **self.headers}


class Dialect(Protocol):
    """How one API reads requests and words its answers and errors."""

    @property
    def method(self) -> Method:
        """The method called."""

    @property
    def is_metered(self) -> bool:
        """Whether a call is charged to the quota, takes time and is billed."""

    @property
    def location(self) -> str:
        """Where the quota is that a call is charged to; "" for the one that all others share."""

    @property
    def resource(self) -> str:
        """What the log of requests calls what is asked."""

    def read(self, request: web.Request, body: bytes) -> ModelCall:
        """Check and read a request; raises `RefusedError` when the service would refuse it."""

    def answer(self, call: ModelCall, answer: Answer, answer_id: str) -> Reply:
        """Word an answer."""

    def error(self, http_status: int, message: str) -> Reply:
        """Word an error; an empty message gives the service's usual one."""

    def quota_exceeded(self, call: ModelCall, rejection: Rejection | None, delay: float | None) -> Reply:
        """Word a 429; `rejection` is None when a fault asked for it. `delay` in seconds."""

    def stream_error(self, reply: Reply, error: Reply) -> Reply:
        """Put an error after the first chunk of a streamed reply."""


class RefusedError(Exception):
    """The service answers with an error; carries the reply to send."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.body.decode())
        self.reply = reply


def json_reply(value: object, *, http_status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    """Return `value` as a JSON reply."""
    return Reply(http_status=http_status, chunks=(encoded(value),), headers=headers or {})


def encoded(value: object) -> bytes:
    """Return `value` as UTF-8 JSON, non-ASCII characters as they are."""
    return json.dumps(value, ensure_ascii=False).encode()


def read_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in `body`.

    Raises:
        ValueError: It is not JSON, or not an object.
    """
    value = json.loads(body)
    if not isinstance(value, dict):
        raise ValueError("Root element must be a message.")
    return value


def preempting(fault: Fault, dialect: Dialect, call: ModelCall) -> Reply | None:
    """Return what a fault sends instead of asking the model; None when the model is asked."""
    match fault.kind:
        case "error":
            return dialect.error(fault.http_status or 500, fault.message)
        case "stream-error" if not call.is_streamed:
            return dialect.error(fault.http_status or 500, fault.message)
        case "rate-limit":
            return dialect.quota_exceeded(call, None, fault.retry_delay_seconds)
        case "garbage":
            return Reply(chunks=(HTML_PAGE,), content_type="text/html; charset=UTF-8")
        case "garbage-json":
            return Reply(chunks=(HTML_PAGE,))
        case _:
            return None


def damaged(fault: Fault | None, dialect: Dialect, reply: Reply) -> Reply:
    """Return the reply as a fault of kind `truncated` or `stream-error` leaves it."""
    if fault is None or reply.http_status != 200:
        return reply
    if fault.kind == "truncated":
        return replace(reply, chunks=(reply.body[: len(reply.body) // 2],), is_streamed=False)
    if fault.kind == "stream-error":
        return dialect.stream_error(reply, dialect.error(fault.http_status or 500, fault.message))
    return reply


async def send(
    request: web.Request, reply: Reply, *, fault: Fault | None = None, seconds: float = 0.0
) -> web.StreamResponse:
    """Send a reply, or as much of it as the fault lets through.

    Args:
        request: What it answers.
        reply: What to send.
        fault: `drop` and `disconnect` lose the connection; other kinds change nothing here.
        seconds: A streamed reply is spread over this long.
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
    """Send headers with the full `Content-Length` and `size` bytes, then drop the connection."""
    response = web.StreamResponse(status=reply.http_status, headers=reply.all_headers())
    response.content_length = len(reply.body)
    if size:
        await response.prepare(request)
        await response.write(reply.body[:size])
    if request.transport is not None:
        request.transport.abort()
    return response


async def until_released(request: web.Request, hold: Hold) -> bool:
    """Wait for a hold's release; returns whether the client still waits for its answer."""
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
    """Return once the client has closed the connection; a closing server cancels the wait.

    aiohttp tells a running handler of neither, unless it is told to cancel every handler whose
    client has gone; the real services finish and bill those.
    """
    while not _is_gone(request):  # noqa: ASYNC110 - no such event
        await asyncio.sleep(_GONE_CHECK_SECONDS)
