"""The path of one request to a REST service of Google: read, meet a fault, work, answer, record."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

from aiohttp import web

from airflow_provider_llmbeam.sandbox.core.backend import Backend
from airflow_provider_llmbeam.sandbox.core.faults import Fault, Method
from airflow_provider_llmbeam.sandbox.core.records import RequestRecord
from airflow_provider_llmbeam.sandbox.core.responses import (
    HTML_PAGE,
    Reply,
    json_reply,
    send,
    until_gone,
    until_released,
)

NOT_IMPLEMENTED = "The sandbox does not emulate this: "
TEXT_TYPE = "text/html; charset=UTF-8"
_CONNECTION_LOST = Fault(kind="disconnect")


class RestError(Exception):
    """The service answers with an error.

    Attributes:
        http_status: 304 or 400 to 599.
        reason: Google's word for it, e.g. "notFound"; "" takes the usual one of the status.
        message: For people.
        location: What the error is about, e.g. "If-Match"; "" says nothing.
    """

    def __init__(self, http_status: int, message: str, reason: str = "", location: str = "") -> None:
        super().__init__(message)
        self.http_status = http_status
        self.message = message
        self.reason = reason
        self.location = location


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """How one service words the errors that a fault asks for.

    Attributes:
        reasons: HTTP status to `reason`.
        messages: HTTP status to message.
        rate_limit: What a caller over its rate gets.
    """

    reasons: Mapping[int, str]
    messages: Mapping[int, str]
    rate_limit: RestError

    def reply(self, error: RestError) -> Reply:
        """Return an error as JSON, in the shape of Google's older APIs: with a list `errors`."""
        reason = error.reason or self.reasons.get(error.http_status, "invalid")
        message = error.message or self.messages.get(error.http_status, f"HTTP {error.http_status}.")
        item = {"message": message, "domain": "global", "reason": reason}
        if error.location:
            item |= {"locationType": "header", "location": error.location}
        body = {"error": {"code": error.http_status, "message": message, "errors": [item]}}
        return json_reply(body, http_status=error.http_status)


STATUSES: Mapping[int, str] = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""HTTP status to `google.rpc.Code`, as the newer APIs call it. Source: google/rpc/code.proto."""


class StatusWording(Wording):
    """Errors in the shape of Google's newer APIs: `{"error": {code, message, status}}`."""

    def reply(self, error: RestError) -> Reply:
        """Return an error as JSON."""
        status = error.reason or self.reasons.get(error.http_status, "UNKNOWN")
        message = error.message or self.messages.get(error.http_status, f"HTTP {error.http_status}.")
        body = {"error": {"code": error.http_status, "message": message, "status": status}}
        return json_reply(body, http_status=error.http_status)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestCall:
    """One request to one method.

    Attributes:
        names: From the path, unquoted.
        query: A value of each parameter.
        repeated: All values of each parameter.
        headers: Names in lower case.
        body: As sent, decompressed; the first half of it when `is_aborted`.
        base_url: Scheme and host as the client sees them.
        is_aborted: Whether a fault ends this call half-way.
        fault: What this call meets, for work that shows it itself.
    """

    names: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""
    base_url: str = ""
    is_aborted: bool = False
    fault: Fault | None = None
    repeated: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def fields(self) -> dict[str, Any]:
        """Return the JSON object in the body; {} when there is no body.

        Raises:
            RestError: It is not JSON, or not an object.
        """
        try:
            value = json.loads(self.body or b"{}")
        except ValueError as error:
            raise RestError(400, "Parse Error", "parseError") from error
        if not isinstance(value, dict):
            raise RestError(400, "Parse Error", "parseError")
        return value

    def number(self, name: str, default: int) -> int:
        """Return a query parameter as a whole number >= 0.

        Raises:
            RestError: It is none.
        """
        text = self.query.get(name, str(default))
        if not text.isdecimal():
            raise RestError(400, f"Invalid value '{text}' for {name}.", "invalidParameter")
        return int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where one method is found, and what does its work.

    Attributes:
        verb: The HTTP method.
        pattern: Of the whole raw path; groups become names.
        method: As in faults and statistics.
        work: Returns the reply or raises `RestError`.
        label: What `Faults.when` searches, and what the log calls the resource.
        is_upload: Whether a fault of kind `abort` loses the connection in the middle of the body.
        upload_type: What `uploadType` must be; None takes any.
    """

    verb: str
    pattern: re.Pattern[str]
    method: Method
    work: Callable[[RestCall], Reply]
    label: Callable[[RestCall], str] = field(default=lambda call: "/".join(call.names.values()))
    is_upload: bool = False
    upload_type: str | None = None


class Service:
    """One REST service.

    Args:
        backend: Faults, log and clock.
        wording: Of its errors.
        routes: Its methods; the first that matches is called.
        is_slow: Whether its work is done off the event loop.
    """

    def __init__(self, backend: Backend, wording: Wording, routes: Sequence[Route], *, is_slow: bool) -> None:
        self._backend = backend
        self._wording = wording
        self._routes = routes
        self._is_slow = is_slow

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        arrival = self._backend.arrival()
        found = self.find(request.method, request.rel_url.raw_path, request.query)
        if found is None:
            reply = self._wording.reply(RestError(404, f"{NOT_IMPLEMENTED}{request.method} {request.path}"))
            return await send(request, reply)
        route, names = found
        call = RestCall(
            names=names,
            query=dict(request.query),
            repeated={name: request.query.getall(name) for name in request.query},
            headers={name.lower(): value for name, value in request.headers.items()},
            base_url=_base_url(request.host),
        )
        call, fault = await self._read(request, route, call)
        if fault is not None and fault.kind == "hang":
            self._backend.log.append(self._record(route, call, arrival.received_at, None), arrival.epoch)
            await until_gone(request)
            return web.Response(status=499)
        hold = fault.until if fault is not None and fault.kind == "hold" else None
        if hold is not None and not await until_released(request, hold):
            self._backend.log.append(self._record(route, call, arrival.received_at, None), arrival.epoch)
            return web.Response(status=499)
        reply = (
            await asyncio.to_thread(self.answer, route, call, fault)
            if self._is_slow
            else self.answer(route, call, fault)
        )
        self._backend.log.append(self._record(route, call, arrival.received_at, reply), arrival.epoch)
        if fault is not None and fault.kind == "abort" and route.is_upload:
            return await send(request, reply, fault=_CONNECTION_LOST)
        return await send(request, reply, fault=fault)

    def find(self, verb: str, raw_path: str, query: Mapping[str, str]) -> tuple[Route, dict[str, str]] | None:
        """Return the route of a raw path and the names in it; None when there is no such method."""
        for route in self._routes:
            if route.verb != verb or route.upload_type not in (None, query.get("uploadType")):
                continue
            match = route.pattern.fullmatch(raw_path)
            if match is not None:
                return route, {name: unquote(value or "") for name, value in match.groupdict().items()}
        return None

    def take(self, route: Route, call: RestCall) -> Fault | None:
        """Return the fault this call meets, if any."""
        text = "" if route.is_upload else call.body.decode(errors="replace")
        return self._backend.faults.take(route.method, f"{route.label(call)}\n{text}")

    def answer(self, route: Route, call: RestCall, fault: Fault | None) -> Reply:
        """Return what the call is answered, broken bodies included; lost connections are up to the caller."""
        refusal = self._preempting(fault)
        if refusal is not None:
            return refusal
        try:
            is_aborted = fault is not None and fault.kind == "abort"
            reply = route.work(replace(call, is_aborted=is_aborted, fault=fault))
        except RestError as error:
            return self._wording.reply(error) if error.http_status != 304 else Reply(http_status=304, chunks=())
        if fault is not None and fault.kind == "truncated":
            return replace(reply, chunks=(reply.body[: len(reply.body) // 2],))
        return reply

    def _preempting(self, fault: Fault | None) -> Reply | None:
        match fault.kind if fault else "":
            case "error" if fault is not None:
                return self._wording.reply(RestError(fault.http_status or 500, fault.message))
            case "rate-limit":
                return self._wording.reply(self._wording.rate_limit)
            case "garbage":
                return Reply(chunks=(HTML_PAGE,), content_type=TEXT_TYPE)
            case "garbage-json":
                return Reply(chunks=(HTML_PAGE,))
            case _:
                return None

    async def _read(self, request: web.Request, route: Route, call: RestCall) -> tuple[RestCall, Fault | None]:
        """Read the body; that of an upload only half when a fault aborts it.

        Not with `request.read()`: uploads may be larger than what a model may be sent.
        """
        size = (request.content_length or 0) if route.is_upload else 0
        head = await request.content.readexactly(size // 2) if size else await request.content.read()
        call = replace(call, body=head)
        fault = self.take(route, call)
        if not size or (fault is not None and fault.kind == "abort"):
            return call, fault
        return replace(call, body=head + await request.content.read()), fault

    def _record(self, route: Route, call: RestCall, received_at: float, reply: Reply | None) -> RequestRecord:
        return RequestRecord(
            method=route.method,
            resource=route.label(call),
            http_status=reply.http_status if reply else None,
            received_bytes=len(call.body),
            sent_bytes=len(reply.body) if reply else 0,
            received_at=received_at,
            answered_at=self._backend.now() if reply else None,
        )

    def log(self, route: Route, call: RestCall, reply: Reply) -> None:
        """Record a call that came inside another one, as in a batch."""
        arrival = self._backend.arrival()
        self._backend.log.append(self._record(route, call, arrival.received_at, reply), arrival.epoch)


def page(call: RestCall, values: Sequence[Any], *, default: int) -> tuple[Sequence[Any], str]:
    """Return the values that `pageToken` and `maxResults` ask for, and the next token or ""."""
    start, size = call.number("pageToken", 0), call.number("maxResults", default) or default
    end = start + size
    return values[start:end], str(end) if end < len(values) else ""


def no_content() -> Reply:
    """Return an empty 204."""
    return Reply(http_status=204, chunks=())


def _base_url(host: str) -> str:
    # Behind the proxy the client speaks TLS and keeps Google's host name.
    return f"https://{host}" if host.endswith(".googleapis.com") else f"http://{host}"
