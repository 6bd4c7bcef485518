"""Requests to services of the emulated Cloud Run: a vLLM server behind an identity token."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from llmbeam_sandbox.cloud_run.api import CloudRun
from llmbeam_sandbox.cloud_run.responses import refused_page
from llmbeam_sandbox.cloud_run.state import SUFFIX, RunService
from llmbeam_sandbox.core.methods import Method, Methods
from llmbeam_sandbox.core.responses import Reply
from llmbeam_sandbox.core.tokens import claims_of
from llmbeam_sandbox.models.answers import Answer
from llmbeam_sandbox.models.calls import ModelCall, RefusedError
from llmbeam_sandbox.models.served import CompletionsDialect, ServedDialect
from llmbeam_sandbox.models.server import ModelServer

METHODS = Methods(
    names=("run.health", "run.models", "run.chatCompletions", "run.completions"),
    streaming=frozenset({"run.chatCompletions", "run.completions"}),
)
_PATHS: Mapping[tuple[str, str], Method] = {
    ("GET", "/health"): "run.health",
    ("GET", "/v1/models"): "run.models",
    ("POST", "/v1/chat/completions"): "run.chatCompletions",
    ("POST", "/v1/completions"): "run.completions",
}
_FORBIDDEN = "Your client does not have permission to get URL <code>{path}</code> from this server."


@dataclass(frozen=True, kw_only=True)
class HealthDialect(ServedDialect):
    """The health check: an empty answer when the server is up."""

    @property
    def is_metered(self) -> bool:
        """Whether a call is charged to the quota, takes time and is billed."""
        return False

    def read(self, request: web.Request, body: bytes) -> ModelCall:
        """Checks a request; raises `RefusedError` if it does not reach the container."""
        self.authenticate(request)
        return ModelCall(model="", prompt="", system="", input_tokens=0, prompt_sha256="")

    def answer(self, call: ModelCall, answer: Answer, answer_id: str) -> Reply:
        """Returns an empty answer."""
        return Reply(chunks=(b"",), content_type="text/plain")


class Traffic:
    """Answers requests to services.

    Args:
        server: Server of all models.
        cloud_run: The services.
    """

    def __init__(self, server: ModelServer, cloud_run: CloudRun) -> None:
        self._server = server
        self._cloud_run = cloud_run

    def middleware(self) -> Middleware:
        """Returns a middleware that answers requests to the hosts of services."""

        @web.middleware
        async def by_host(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await (self.serve(request) if request.host.endswith(SUFFIX) else handler(request))

        return by_host

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answers one request."""
        method = _PATHS.get((request.method, request.path), "run.health")
        service = self._service(request)
        common: dict[str, Any] = {
            "method": method,
            "api_key": None,
            "input_token_limit": self._server.settings.input_token_limit,
            "name": service.serving.served.name if service is not None and service.serving is not None else "",
            "admit": self._admit,
            "is_named": True,
        }
        kind = {"run.health": HealthDialect, "run.completions": CompletionsDialect}.get(method, ServedDialect)
        return await self._server.serve(request, kind(**common))

    def _service(self, request: web.Request) -> RunService | None:
        with self._cloud_run.timeline.settled():
            return self._cloud_run.at(request.host)

    def _admit(self, request: web.Request) -> None:
        """Applies the checks of Cloud Run before the container; raises `RefusedError`."""
        service = self._service(request)
        if service is None:
            raise refused_page(
                404, "Page not found", f"The requested URL <code>{request.path}</code> was not found."
            )
        if not service.is_public:
            self._check_token(service, request)
        with self._cloud_run.timeline.settled() as now:
            if not self._cloud_run.instances.admit(service, now):
                raise refused_page(
                    503, "Server Error", "The service you requested is not available yet: it is starting."
                )
        if (request.method, request.path) not in _PATHS:
            raise RefusedError(
                Reply(http_status=404, chunks=(b'{"detail":"Not Found"}',), content_type="application/json")
            )

    def _check_token(self, service: RunService, request: web.Request) -> None:
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        if kind != "Bearer" or not token:
            raise refused_page(403, "Forbidden", _FORBIDDEN.format(path=request.path))
        claims = claims_of(token)
        # Tokens expire by the machine's clock, by which they are issued.
        audiences = {*service.urls, *(service.fields.get("customAudiences") or ())}
        is_known = str(claims.get("aud", "")).rstrip("/") in audiences
        if not is_known or float(claims.get("exp", 0)) <= time.time():
            text = "Your client does not have permission to the requested URL."
            header = {
                "WWW-Authenticate": 'Bearer error="invalid_token" '
                'error_description="The access token could not be verified"'
            }
            raise refused_page(401, "Unauthorized", text, header)
