"""The path of one request to a REST API of Google: read, apply a fault, work, answer, record."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

from aiohttp import web

from llmbeam_sandbox.core.access import user_info
from llmbeam_sandbox.core.backend import Backend
from llmbeam_sandbox.core.faults import Fault
from llmbeam_sandbox.core.methods import Method
from llmbeam_sandbox.core.records import RequestRecord
from llmbeam_sandbox.core.responses import (
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
        http_status: Status of the answer, 304 or 400 to 599.
        message: Message of the answer.
        reason: Reason or status in Google's terms, e.g. "notFound"; "" takes the usual one of `http_status`.
        location: Header that the error is about, e.g. "If-Match"; "" names none.
        details: Details as in `google.rpc.Status`; only the newer APIs send them.
    """

    def __init__(
        self,
        http_status: int,
        message: str,
        reason: str = "",
        location: str = "",
        details: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        super().__init__(message)
        self.http_status = http_status
        self.message = message
        self.reason = reason
        self.location = location
        self.details = details


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """The errors of one service that a fault can cause.

    Attributes:
        reasons: Reason by HTTP status.
        messages: Message by HTTP status.
        rate_limit: Error of a `rate-limit`.
    """

    reasons: Mapping[int, str]
    messages: Mapping[int, str]
    rate_limit: RestError

    def reply(self, error: RestError) -> Reply:
        """Returns an error as JSON, in the format of Google's older APIs: with a list `errors`."""
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
"""`google.rpc.Code` by HTTP status, by the name that the newer APIs use. Source: google/rpc/code.proto."""


class StatusWording(Wording):
    """Errors in the format of Google's newer APIs: `{"error": {code, message, status, details}}`."""

    def reply(self, error: RestError) -> Reply:
        """Returns an error as JSON; its reason, when it has one, is the status."""
        body: dict[str, Any] = {
            "code": error.http_status,
            "message": error.message or self.messages.get(error.http_status, f"HTTP {error.http_status}."),
            "status": error.reason or self.reasons.get(error.http_status, "UNKNOWN"),
        }
        if error.details:
            body["details"] = list(error.details)
        return json_reply({"error": body}, http_status=error.http_status)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestCall:
    """One request to one method.

    Attributes:
        names: Names in the path, unquoted.
        query: First value of each query parameter.
        repeated: All values of each query parameter.
        headers: Headers, with names in lower case.
        body: Body, decompressed; its first half when `is_aborted`.
        base_url: Scheme and host as the client sees them.
        is_aborted: Whether a fault interrupts this call half-way.
        fault: Fault of this call, for handlers that apply it themselves.
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
        """Returns the JSON object in the body; {} without a body.

        Raises:
            RestError: The body is not JSON, or not an object.
        """
        try:
            value = json.loads(self.body or b"{}")
        except ValueError as error:
            raise RestError(400, "Parse Error", "parseError") from error
        if not isinstance(value, dict):
            raise RestError(400, "Parse Error", "parseError")
        return value

    def number(self, name: str, default: int) -> int:
        """Returns a query parameter as a whole number >= 0.

        Raises:
            RestError: It is not such a number.
        """
        text = self.query.get(name, str(default))
        if not text.isdecimal():
            raise RestError(400, f"Invalid value '{text}' for {name}.", "invalidParameter")
        return int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The path of one method, and its handler.

    Attributes:
        verb: HTTP method.
        pattern: Pattern of the whole raw path; groups become names.
        method: Method name of faults and statistics.
        work: Handler; returns the reply or raises `RestError`.
        label: Returns the resource's name in the log, which `Faults.when` searches as well.
        is_upload: Whether a fault of kind `abort` closes the connection in the middle of the body.
        upload_type: Required value of `uploadType`; None accepts any.
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
        backend: Faults, request log and clock.
        wording: Errors of the service.
        routes: Methods of the service; the first that matches is called.
        is_slow: Whether handlers run in a thread, off the event loop.

    Raises:
        ValueError: A route has a method that no service has declared.
    """

    def __init__(self, backend: Backend, wording: Wording, routes: Sequence[Route], *, is_slow: bool) -> None:
        for route in routes:
            backend.methods.check(route.method)
        self._backend = backend
        self._wording = wording
        self._routes = routes
        self._is_slow = is_slow

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answers one request."""
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
            base_url=_base_url(request),
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
        """Returns the route of a raw path and the names in the path; None without such a method."""
        for route in self._routes:
            if route.verb != verb or route.upload_type not in (None, query.get("uploadType")):
                continue
            match = route.pattern.fullmatch(raw_path)
            if match is not None:
                return route, {name: unquote(value or "") for name, value in match.groupdict().items()}
        return None

    def take(self, route: Route, call: RestCall) -> Fault | None:
        """Returns the fault of a call, if any."""
        text = "" if route.is_upload else call.body.decode(errors="replace")
        return self._backend.faults.take(route.method, f"{route.label(call)}\n{text}")

    def answer(self, route: Route, call: RestCall, fault: Fault | None) -> Reply:
        """Returns the reply of a call, damaged by some faults; the caller drops the connection for others."""
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
        """Reads the body; only the first half of an upload that a fault aborts.

        `request.read()` is not used: uploads may be larger than its limit, which is for models.
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
        """Records a call inside another one, as in a batch."""
        arrival = self._backend.arrival()
        self._backend.log.append(self._record(route, call, arrival.received_at, reply), arrival.epoch)


def page(
    call: RestCall, values: Sequence[Any], *, default: int, size: str = "maxResults"
) -> tuple[Sequence[Any], dict[str, str]]:
    """Returns the requested page of a list, and the field `nextPageToken` unless it is the last one.

    Args:
        call: The call; its `pageToken` selects the page.
        values: The list.
        default: Size of a page for a call that names none.
        size: Query parameter with the size of a page.
    """
    start, count = call.number("pageToken", 0), call.number(size, default) or default
    end = start + count
    return values[start:end], {"nextPageToken": str(end)} if end < len(values) else {}


def no_content() -> Reply:
    """Returns an empty 204."""
    return Reply(http_status=204, chunks=())


def _base_url(request: web.Request) -> str:
    # Behind the proxy the client speaks TLS and keeps Google's host name.
    if request.host.endswith(".googleapis.com"):
        return f"https://{request.host}"
    # A client that got its password from an address sends none to another address.
    user = user_info(request.headers)
    return f"http://{user}@{request.host}" if user else f"http://{request.host}"
