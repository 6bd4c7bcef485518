"""The routes of the cached contents of Gemini, for requests with credentials."""

from __future__ import annotations

from aiohttp import web

from llmbeam_sandbox.models.cached_contents import CachedContents
from llmbeam_sandbox.models.calls import RefusedError
from llmbeam_sandbox.models.gemini import GeminiDialect


def routes(caches: CachedContents) -> list[web.RouteDef]:
    """Returns the routes of the caches."""

    async def serve(request: web.Request) -> web.StreamResponse:
        return _refusal(request) or await caches.service.serve(request)

    roots = ("/{version:v1beta}", "/{version:v1|v1beta1}/projects/{project}/locations/{location}")
    return [web.route("*", f"{root}/cachedContents{{tail:(?:/.*)?}}", serve) for root in roots]


def _refusal(request: web.Request) -> web.StreamResponse | None:
    """Returns the refusal of a request for cached contents without credentials."""
    dialect = GeminiDialect(
        method="gemini.generateContent",
        model="",
        version="",
        publisher="",
        project=request.match_info.get("project", ""),
        is_sse=False,
        input_token_limit=1,
    )
    try:
        dialect.authenticate(request)
    except RefusedError as refused:
        reply = refused.reply
        return web.Response(status=reply.http_status, body=reply.body, headers=reply.all_headers())
    return None
