"""What goes over the wire of a sandbox: each request with its reply, as raw bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import web
from llmbeam_sandbox import Sandbox
from llmbeam_sandbox.core.grpc import GrpcServer
from llmbeam_sandbox.core.responses import JSON_TYPE
from llmbeam_sandbox.models.anthropic import AnthropicDialect
from llmbeam_sandbox.models.gemini import GeminiDialect
from llmbeam_sandbox.models.server import ModelServer


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One request and its reply; the reply is what the server wrote, also if a fault cut it off."""

    verb: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    host: str = ""
    content_type: str = ""
    request: bytes = b""
    http_status: int = 200
    reply_type: str = ""
    reply: bytes = b""


class _Recorded:
    """The body of a request, which keeps what its handler reads; the middleware itself reads nothing."""

    def __init__(self, payload):
        self._payload = payload
        self.chunks = []

    def __getattr__(self, name):
        return getattr(self._payload, name)

    async def read(self, n=-1):
        return self._keep(await self._payload.read(n))

    async def readany(self):
        return self._keep(await self._payload.readany())

    async def readexactly(self, n):
        return self._keep(await self._payload.readexactly(n))

    def _keep(self, chunk):
        self.chunks.append(chunk)
        return chunk


@dataclass
class Recorder:
    """Hands each exchange of all sandboxes of this process to `check`, in the thread of the sandbox."""

    check: Callable[[Exchange], None]
    _written: dict[int, list[bytes]] = field(default_factory=dict)

    def install(self) -> None:
        """Puts the middleware into each sandbox that is made from now on; also what comes by gRPC or in files."""
        make, answer_rpc, answer_row = Sandbox._application, GrpcServer._answer, ModelServer.answer_row

        def application(sandbox):
            made = make(sandbox)
            made.middlewares.insert(0, self.middleware)
            made.on_response_prepare.append(self._record_stream)
            return made

        def rpc(server, service, call, verb, path, context):
            value = answer_rpc(server, service, call, verb, path, context)
            self._record(verb, path, call.body or b"null", json.dumps(value).encode())
            return value

        def row(server, dialect, body, labels=()):
            reply = answer_row(server, dialect, body, labels)
            sent = body.replace(b', "stream": false}', b"}")  # which the emulator adds to a line of OpenAI
            self._record("POST", _path(dialect), sent, reply.body, reply.http_status)
            return reply

        Sandbox._application, GrpcServer._answer, ModelServer.answer_row = application, rpc, row

    def _record(self, verb, path, request, reply, http_status=200):
        self.check(
            Exchange(
                verb=verb,
                path=path,
                content_type=JSON_TYPE,
                request=request,
                http_status=http_status,
                reply_type=JSON_TYPE,
                reply=reply,
            )
        )

    @web.middleware
    async def middleware(self, request, handler):
        body, kind = None, request.headers.get("Content-Type", "")
        if request.body_exists and _holds_messages(kind):
            body = request._payload = _Recorded(request.content)
        try:
            response = await handler(request)
        except BaseException:
            self._written.pop(id(request), None)
            raise
        written = self._written.pop(id(request), [])
        reply_kind = response.headers.get("Content-Type", "")
        reply = response.body if isinstance(response, web.Response) else b"".join(written)
        self.check(
            Exchange(
                verb=request.method,
                path=request.rel_url.raw_path,
                query=tuple(request.query.items()),
                host=request.host,
                content_type=kind,
                request=b"".join(body.chunks) if body else b"",
                http_status=response.status,
                reply_type=reply_kind,
                reply=bytes(reply or b"") if _holds_messages(reply_kind) else b"",
            )
        )
        return response

    async def _record_stream(self, request, response):
        if isinstance(response, web.Response):
            return
        written, write = self._written.setdefault(id(request), []), response.write

        async def recorded(data):
            written.append(bytes(data))
            await write(data)

        response.write = recorded


def _holds_messages(content_type):
    """Returns whether a body holds messages, and not the bytes of a file."""
    return "json" in content_type or content_type.startswith(("multipart/related", "text/event-stream"))


def _path(dialect):
    """Returns the path of a request that is a row of batch inference, by its dialect."""
    is_embedding = "embedding" in type(dialect).__module__
    if isinstance(dialect, AnthropicDialect):
        model = f"{dialect.resource}/publishers/anthropic/models/{dialect.vertex_model}"
        return f"/v1/{model}:rawPredict" if dialect.vertex_model else "/v1/messages"
    if not isinstance(dialect, GeminiDialect):
        return "/v1/embeddings" if is_embedding else "/v1/chat/completions"
    verb = "embedContent" if is_embedding else "generateContent"
    publisher = f"{dialect.project}{dialect.publisher}/" if dialect.publisher else ""
    return f"/{dialect.version}/{publisher}models/{dialect.model}:{verb}"
