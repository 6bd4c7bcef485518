"""Refusal of requests that a web page makes to the sandbox."""

from __future__ import annotations

from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler

from llmbeam_sandbox.core.responses import google_error
from llmbeam_sandbox.network.proxy import is_served

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})


@web.middleware
async def refuse_web_pages(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuses hosts that are neither this machine nor emulated, and requests of pages of another origin.

    A page whose name resolves to 127.0.0.1 (DNS rebinding) sends its own name as `Host`. Any other page sends its
    `Origin` with each request that may change something.
    """
    host = request.headers.get("Host", "").lower()
    if (name := _without_port(host)) not in _LOOPBACK and not is_served(name):
        return _refused(
            f"The sandbox refuses host {host[:200]!r}: it answers for 127.0.0.1, localhost and, behind its proxy, "
            "the emulated hosts of Google."
        )
    origin = request.headers.get("Origin")
    if origin is not None and urlsplit(origin.lower()).netloc != host:
        return _refused(f"The sandbox refuses requests of web pages: the origin {origin[:200]!r} is not {host!r}.")
    return await handler(request)


def _without_port(host: str) -> str:
    return f"{host.partition(']')[0]}]" if host.startswith("[") else host.partition(":")[0]


def _refused(message: str) -> web.Response:
    reply = google_error(403, message)
    return web.Response(status=403, body=reply.body, headers=reply.all_headers())
