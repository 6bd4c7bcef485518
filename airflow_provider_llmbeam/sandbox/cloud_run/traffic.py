"""What answers at the addresses of the emulated Cloud Run's services: a server as vLLM's, behind a token."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from airflow_provider_llmbeam.sandbox.cloud_run.api import CloudRun
from airflow_provider_llmbeam.sandbox.cloud_run.state import SUFFIX, RunService
from airflow_provider_llmbeam.sandbox.core.backend import Backend
from airflow_provider_llmbeam.sandbox.core.faults import Method
from airflow_provider_llmbeam.sandbox.core.responses import ModelCall, RefusedError, Reply
from airflow_provider_llmbeam.sandbox.models.answers import Answer
from airflow_provider_llmbeam.sandbox.models.served import CompletionsDialect, ServedDialect
from airflow_provider_llmbeam.sandbox.network.credentials import claims_of

_PATHS: Mapping[tuple[str, str], Method] = {
    ("GET", "/health"): "run.health",
    ("GET", "/v1/models"): "run.models",
    ("POST", "/v1/chat/completions"): "run.chatCompletions",
    ("POST", "/v1/completions"): "run.completions",
}
_PAGE = "<html><head><title>{status}</title></head><body><h1>Error: {title}</h1><h2>{text}</h2></body></html>\n"
_NOBODY = "Your client does not have permission to get URL <code>{path}</code> from this server."


@dataclass(frozen=True, kw_only=True)
class HealthDialect(ServedDialect):
    """Whether the server is up: an empty answer says yes."""

    @property
    def is_metered(self) -> bool:
        """Whether a call is charged to the quota, takes time and is billed."""
        return False

    def read(self, request: web.Request, body: bytes) -> ModelCall:
        """Check a request; raises `RefusedError` when it does not get as far as the container."""
        self.authenticate(request)
        return ModelCall(model="", prompt="", system="", input_tokens=0, prompt_sha256="")

    def answer(self, call: ModelCall, answer: Answer, answer_id: str) -> Reply:
        """Return an empty answer."""
        return Reply(chunks=(b"",), content_type="text/plain")


class Traffic:
    """Answers requests to services.

    Args:
        backend: Of all models.
        cloud_run: The services.
        input_token_limit: Longest prompt that a model takes, in tokens.
    """

    def __init__(self, backend: Backend, cloud_run: CloudRun, *, input_token_limit: int) -> None:
        self._backend = backend
        self._cloud_run = cloud_run
        self._input_token_limit = input_token_limit

    def middleware(self) -> Middleware:
        """Return what sends requests to the hosts of services here, and all others on."""

        @web.middleware
        async def by_host(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await (self.serve(request) if request.host.endswith(SUFFIX) else handler(request))

        return by_host

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        method = _PATHS.get((request.method, request.path), "run.health")
        service = self._service(request)
        common: dict[str, Any] = {
            "method": method,
            "api_key": None,
            "input_token_limit": self._input_token_limit,
            "name": service.serving.served.name if service is not None and service.serving is not None else "",
            "admit": self._admit,
            "is_named": True,
        }
        kind = {"run.health": HealthDialect, "run.completions": CompletionsDialect}.get(method, ServedDialect)
        return await self._backend.serve(request, kind(**common))

    def _service(self, request: web.Request) -> RunService | None:
        with self._cloud_run.timeline.lock:
            self._cloud_run.timeline.settle()
            return self._cloud_run.at(request.host)

    def _admit(self, request: web.Request) -> None:
        """Check what Cloud Run checks in front of the container; raises `RefusedError`."""
        service = self._service(request)
        if service is None:
            raise _refused(404, "Page not found", f"The requested URL <code>{request.path}</code> was not found.")
        if not service.is_public:
            self._check_token(service, request)
        with self._cloud_run.timeline.lock:
            now = self._cloud_run.timeline.settle()
            if not self._cloud_run.instances.ask(service, now):
                raise _refused(
                    503, "Server Error", "The service you requested is not available yet: it is starting."
                )
        if (request.method, request.path) not in _PATHS:
            raise RefusedError(
                Reply(http_status=404, chunks=(b'{"detail":"Not Found"}',), content_type="application/json")
            )

    def _check_token(self, service: RunService, request: web.Request) -> None:
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        if kind != "Bearer" or not token:
            raise _refused(403, "Forbidden", _NOBODY.format(path=request.path))
        claims = claims_of(token)
        audiences = {*service.urls, *(service.fields.get("customAudiences") or ())}
        is_known = str(claims.get("aud", "")).rstrip("/") in audiences
        if not is_known or float(claims.get("exp", 0)) <= self._token_clock():
            text = "Your client does not have permission to the requested URL."
            header = {
                "WWW-Authenticate": 'Bearer error="invalid_token" '
                'error_description="The access token could not be verified"'
            }
            raise _refused(401, "Unauthorized", text, header)

    def _token_clock(self) -> float:
        """Return the time by which tokens expire: that of the machine, by which they are made."""
        return time.time()


def _refused(http_status: int, title: str, text: str, headers: Mapping[str, str] | None = None) -> RefusedError:
    page = _PAGE.format(status=http_status, title=title, text=text).encode()
    return RefusedError(
        Reply(
            http_status=http_status, chunks=(page,), content_type="text/html; charset=UTF-8", headers=headers or {}
        )
    )
