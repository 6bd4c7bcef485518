"""Batches of Cloud Storage: several calls in one request."""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import parse_qsl, urlsplit

from aiohttp import web

from llmbeam_sandbox.core.backend import Backend
from llmbeam_sandbox.core.faults import Fault
from llmbeam_sandbox.core.methods import Method
from llmbeam_sandbox.core.responses import Reply, send
from llmbeam_sandbox.core.rest import RestCall, RestError, Service
from llmbeam_sandbox.core.uploads import Part, headers, parts
from llmbeam_sandbox.storage.responses import WORDING

_BATCH: Method = "storage.objects.batch"
_LOST = frozenset({"drop", "disconnect"})


class Batch:
    """Answers batches; each call in a batch has its own faults."""

    def __init__(self, backend: Backend, service: Service) -> None:
        self._backend = backend
        self._service = service

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answers a batch.

        If the fault of an inner call closes the connection, the whole answer is lost.
        """
        fault = self._backend.faults.take(_BATCH, "")
        if fault is not None and fault.kind in ("error", "rate-limit"):
            error = WORDING.rate_limit if fault.kind == "rate-limit" else RestError(fault.http_status or 500, "")
            return await send(request, WORDING.reply(error))
        try:
            found = parts(request.headers.get("content-type", ""), await request.content.read())
        except RestError as error:
            return await send(request, WORDING.reply(error))
        bodies = []
        for part in found:
            reply, inner = self._answer(part)
            fault = inner if inner is not None and inner.kind in _LOST else fault
            bodies.append(_batch_part(part, reply))
        body = b"".join(bodies) + b"--batch_sandbox--\r\n"
        reply = Reply(chunks=(body,), content_type="multipart/mixed; boundary=batch_sandbox")
        return await send(request, reply, fault=fault)

    def _answer(self, part: Part) -> tuple[Reply, Fault | None]:
        head, _, body = part.body.replace(b"\r\n", b"\n").partition(b"\n\n")
        first, *lines = head.decode().splitlines()
        verb, target, *_ = first.split(" ")
        url = urlsplit(target)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        found = self._service.find(verb, url.path, query)
        if found is None:
            return WORDING.reply(RestError(404, f"Not Found: {verb} {url.path}")), None
        route, names = found
        call = RestCall(names=names, query=query, headers=headers(lines), body=body)
        fault = self._service.take(route, call)
        reply = self._service.answer(route, call, fault)
        self._service.log(route, call, reply)
        return reply, fault


def _batch_part(part: Part, reply: Reply) -> bytes:
    content_id = part.headers.get("content-id", "").strip("<>")
    lines = [
        "--batch_sandbox",
        "Content-Type: application/http",
        f"Content-ID: <response-{content_id}>",
        "",
        f"HTTP/1.1 {reply.http_status} {HTTPStatus(reply.http_status).phrase}",
        f"Content-Type: {reply.content_type}",
        f"Content-Length: {len(reply.body)}",
        "",
        "",
    ]
    return "\r\n".join(lines).encode() + reply.body + b"\r\n"
