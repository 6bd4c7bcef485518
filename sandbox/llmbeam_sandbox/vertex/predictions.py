"""Predictions of endpoints of the emulated Vertex AI, on the region's host and on dedicated ones."""

from __future__ import annotations

import random
from typing import Any

from aiohttp import web

from llmbeam_sandbox.core.methods import Method, Methods
from llmbeam_sandbox.core.responses import google_error
from llmbeam_sandbox.core.rest import RestError
from llmbeam_sandbox.models.calls import RefusedError
from llmbeam_sandbox.models.served import PredictDialect, VertexChatDialect
from llmbeam_sandbox.models.server import ModelServer
from llmbeam_sandbox.vertex.api import Vertex
from llmbeam_sandbox.vertex.checks import (
    CONNECTED_SUFFIX,
    DEDICATED_SUFFIX,
    SHARED_SUFFIX,
    check_host,
)
from llmbeam_sandbox.vertex.responses import WORDING
from llmbeam_sandbox.vertex.state import Deployed, Endpoint

METHODS = Methods(
    names=("vertex.chatCompletions", "vertex.predict", "vertex.rawPredict"),
    streaming=frozenset({"vertex.chatCompletions", "vertex.rawPredict"}),
)
SHARED_SUFFIXES = (SHARED_SUFFIX, "aiplatform.googleapis.com")
_NO_TOKEN = "Request is missing required authentication credential. Expected OAuth 2 access token."
_WARMING = "The model server is not ready to serve requests yet. Please try again later."
_NO_CHAT = "Chat completions are not supported for the model that is deployed to the Endpoint."
_CHAT_IMAGES = ("pytorch-vllm-serve", "text-generation-inference")
_LOCATION = "/{version:v1|v1beta1}/projects/{project}/locations/{location:[^/:]+}"
_ENDPOINT = f"{_LOCATION}/endpoints/{{endpoint:[^/:]+}}"


class Predictions:
    """The methods of deployed models.

    Args:
        server: Server of all models.
        vertex: Deployed models.
    """

    def __init__(self, server: ModelServer, vertex: Vertex) -> None:
        self._server = server
        self._state = vertex.state
        self._random = random.Random(0)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answers a chat completion."""
        endpoint, deployed = self._target(request)
        common = self._common(endpoint, deployed, "vertex.chatCompletions")
        return await self._server.serve(request, VertexChatDialect(**{**common, "admit": self._admit_chat}))

    async def predict(self, request: web.Request) -> web.StreamResponse:
        """Answers instances with predictions."""
        endpoint, deployed = self._target(request)
        added = (
            {
                "deployedModelId": deployed.id,
                "model": deployed.model.name,
                "modelDisplayName": str(deployed.model.fields.get("displayName", "")),
                "modelVersionId": deployed.model.id,
            }
            if deployed
            else {"deployedModelId": ""}
        )
        is_shared = request.host.endswith(SHARED_SUFFIXES)
        common = self._common(endpoint, deployed, "vertex.predict")
        dialect = PredictDialect(**common, added=added, is_shared=is_shared)
        return await self._server.serve(request, dialect)

    async def raw_predict(self, request: web.Request) -> web.StreamResponse:
        """Passes the body to the container unchanged."""
        endpoint, deployed = self._target(request)
        common = self._common(endpoint, deployed, "vertex.rawPredict")
        response = await self._server.serve(request, PredictDialect(**common, added={}))
        # Documented for `rawPredict` alone, not for `streamRawPredict`. Source: Discovery document of v1.
        is_named = request.path.endswith(":rawPredict") and not response.prepared
        if endpoint is not None and deployed is not None and is_named:
            response.headers["X-Vertex-AI-Endpoint-Id"] = endpoint.name.rpartition("/")[2]
            response.headers["X-Vertex-AI-Deployed-Model-Id"] = deployed.id
        return response

    async def peered(self, request: web.Request) -> web.StreamResponse:
        """Passes the body to the container of an endpoint in a peered network; no token, and no streams."""
        host, deployed_id = request.host.partition(":")[0], request.match_info["deployed"]
        found: tuple[Endpoint | None, Deployed | None] = (None, None)
        with self._state.timeline.settled():
            for endpoint in self._state.endpoints.values():
                if host == endpoint.peered_host:
                    found = endpoint, next((one for one in endpoint.ready if one.id == deployed_id), None)

        def admit(request: web.Request) -> None:
            if found[1] is None:
                raise RefusedError(google_error(404, f"{host} has no model {deployed_id}."))
            self._check_warm(found[1])

        common = {**self._common(*found, "vertex.rawPredict"), "admit": admit}
        return await self._server.serve(request, PredictDialect(**common, added={}))

    def _common(self, endpoint: Endpoint | None, deployed: Deployed | None, method: Method) -> dict[str, Any]:
        own = f"/deployedModels/{deployed.id}" if deployed else ""
        return {
            "resource": f"{endpoint.name}{own}" if endpoint else "",
            "method": method,
            "api_key": None,
            "input_token_limit": self._server.settings.input_token_limit,
            "name": deployed.model.served.name or deployed.model.name if deployed else "",
            "admit": self._admit,
        }

    def _target(self, request: web.Request) -> tuple[Endpoint | None, Deployed | None]:
        """Returns the endpoint and the model on it that answers; None for each that does not exist."""
        found = request.match_info
        with self._state.timeline.settled():
            try:
                endpoint = self._state.endpoint(found["project"], found["location"], found["endpoint"])
            except RestError:
                return None, None
            ready = endpoint.ready
            shares = [endpoint.traffic.get(one.id, 0) for one in ready]
            if not sum(shares):
                return endpoint, None
            return endpoint, self._random.choices(ready, shares)[0]

    def _admit(self, request: web.Request) -> None:
        """Applies the checks of Vertex AI before the container; raises `RefusedError`."""
        if not request.headers.get("Authorization", "").startswith("Bearer "):
            raise RefusedError(google_error(401, _NO_TOKEN))
        found, host = request.match_info, request.host
        try:
            check_host(host, found["location"])
        except RestError as error:
            raise RefusedError(WORDING.reply(error)) from error
        endpoint, deployed = self._target(request)
        if endpoint is None:
            name = f"projects/{found['project']}/locations/{found['location']}/endpoints/{found['endpoint']}"
            raise RefusedError(google_error(404, f"Endpoint `{name}` not found."))
        if endpoint.peered_host or endpoint.is_connected != host.endswith(CONNECTED_SUFFIX):
            raise RefusedError(
                google_error(400, f"The host {host} does not lead to the endpoint {endpoint.name}.")
            )
        own = endpoint.dedicated_dns
        if host.endswith(DEDICATED_SUFFIX) and host != own:
            raise RefusedError(google_error(404, f"The host {host} is not that of the endpoint {endpoint.name}."))
        if own and host.endswith(SHARED_SUFFIXES):
            # Source: quoted with this wording in several public repositories.
            raise RefusedError(
                WORDING.reply(
                    RestError(
                        400,
                        "Dedicated Endpoint cannot be accessed through the shared Vertex AI domain "
                        f"aiplatform.googleapis.com. Please access the endpoint using its dedicated "
                        f"domain name '{own}'",
                        "FAILED_PRECONDITION",
                    )
                )
            )
        if deployed is None:
            raise RefusedError(
                google_error(404, f"Endpoint `{endpoint.name}` has no deployed model to serve requests.")
            )
        self._check_warm(deployed)

    def _admit_chat(self, request: web.Request) -> None:
        """Applies the checks before a chat completion; raises `RefusedError`."""
        self._admit(request)
        _, deployed = self._target(request)
        image = str(((deployed.model.fields if deployed else {}).get("containerSpec") or {}).get("imageUri"))
        is_documented = any(name in image for name in _CHAT_IMAGES)
        if self._state.settings.chat_completions == "model_garden" and not is_documented:
            raise RefusedError(google_error(400, _NO_CHAT))

    def _check_warm(self, deployed: Deployed) -> None:
        now = self._state.timeline.now()
        if deployed.deployed_at is not None and now < deployed.deployed_at + self._state.settings.warm_seconds:
            raise RefusedError(google_error(503, _WARMING))


def routes(server: ModelServer, vertex: Vertex) -> list[web.RouteDef]:
    """Returns the routes of the models on endpoints; publishers' models are routes of Gemini."""
    predictions = Predictions(server, vertex)
    return [
        web.post(f"{_ENDPOINT}/chat/completions", predictions.chat),
        web.post(f"{_ENDPOINT}:predict", predictions.predict),
        web.post(f"{_ENDPOINT}:rawPredict", predictions.raw_predict),
        web.post(f"{_ENDPOINT}:streamRawPredict", predictions.raw_predict),
        web.post("/v1/models/{deployed:[^/:]+}:predict", predictions.peered),
    ]
