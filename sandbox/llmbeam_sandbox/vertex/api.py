"""Vertex AI's REST API of endpoints, models and Model Garden, v1 and v1beta1."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from aiohttp import web

from llmbeam_sandbox.billing.settings import EndpointSettings
from llmbeam_sandbox.billing.state import Bill
from llmbeam_sandbox.core.backend import Backend
from llmbeam_sandbox.core.checks import check_kms_key, check_labels, check_location, project_number
from llmbeam_sandbox.core.clock import Timeline
from llmbeam_sandbox.core.methods import Method, Methods
from llmbeam_sandbox.core.operations import Operation, Operations
from llmbeam_sandbox.core.resource_filter import listed, paged
from llmbeam_sandbox.core.responses import Reply, json_reply
from llmbeam_sandbox.core.rest import RestCall, RestError, Route, Service
from llmbeam_sandbox.vertex.checks import check_host, read_hardware
from llmbeam_sandbox.vertex.deployments import (
    begin,
    check_idle,
    check_quota,
    complete,
    deletion,
    operation,
    outcome,
    read_split,
    remove,
)
from llmbeam_sandbox.vertex.garden import Garden
from llmbeam_sandbox.vertex.metadata import Metadata
from llmbeam_sandbox.vertex.models import Models
from llmbeam_sandbox.vertex.responses import WORDING
from llmbeam_sandbox.vertex.state import Deployed, Endpoint, VertexState, parent

Work = Callable[[RestCall], Reply]
LOCATION = r"/(?P<version>v1|v1beta1|ui)/projects/(?P<project>[^/]+)/locations/(?P<location>[^/:]+)"
_ENDPOINT = rf"{LOCATION}/endpoints/(?P<endpoint>[^/:]+)"
_MODEL = rf"{LOCATION}/models/(?P<model>[^/:]+)"
_STORE = rf"{LOCATION}/metadataStores/(?P<store>[^/:]+)"
_CONTEXT = rf"{_STORE}/contexts/(?P<context>[^/:]+)"
_OPERATION = rf"{LOCATION}/(?P<target>(?:[A-Za-z]+/[^/:]+/)*)operations/(?P<operation>[^/:]+)"
METHODS = Methods(
    names=(
        "vertex.contexts.addContextChildren",
        "vertex.contexts.create",
        "vertex.contexts.get",
        "vertex.contexts.patch",
        "vertex.endpoints.create",
        "vertex.endpoints.delete",
        "vertex.endpoints.deployModel",
        "vertex.endpoints.get",
        "vertex.endpoints.list",
        "vertex.endpoints.patch",
        "vertex.endpoints.undeployModel",
        "vertex.metadataStores.create",
        "vertex.modelGarden.deploy",
        "vertex.modelGarden.get",
        "vertex.models.delete",
        "vertex.models.get",
        "vertex.models.list",
        "vertex.models.listVersions",
        "vertex.models.mergeVersionAliases",
        "vertex.models.patch",
        "vertex.models.upload",
        "vertex.operations.cancel",
        "vertex.operations.delete",
        "vertex.operations.get",
        "vertex.operations.list",
        "vertex.operations.wait",
    ),
    operations=frozenset(
        {"vertex.endpoints.create", "vertex.endpoints.delete", "vertex.endpoints.deployModel"}
        | {"vertex.metadataStores.create"}
        | {"vertex.endpoints.undeployModel", "vertex.modelGarden.deploy"}
        | {"vertex.models.delete", "vertex.models.upload"}
    ),
    accelerators=frozenset({"vertex.endpoints.deployModel", "vertex.modelGarden.deploy"}),
)
_PATCHED = {"display_name": "displayName", "traffic_split": "trafficSplit"}
# Fields that a create may set.
_KEPT = frozenset(
    {"displayName", "description", "labels", "network", "dedicatedEndpointEnabled", "encryptionSpec"}
    | {"enablePrivateServiceConnect", "privateServiceConnectConfig", "clientConnectionConfig"}
    | {"predictRequestResponseLoggingConfig"}
)


class Vertex:
    """The methods of Vertex AI, except predictions.

    Args:
        backend: Faults, request log and clock.
        timeline: Scheduled actions.
        bill: Charges for deployed models.
        settings: Durations and the quota of accelerators.
    """

    def __init__(self, backend: Backend, timeline: Timeline, bill: Bill, settings: EndpointSettings) -> None:
        self.state = VertexState(
            timeline=timeline,
            operations=Operations(timeline=timeline, seconds=settings.operation_seconds),
            bill=bill,
            settings=settings,
        )
        self._models, self._garden = Models(self.state), Garden(self.state)
        self._metadata = Metadata(state=self.state)
        self.service = Service(backend, WORDING, self._routes(), is_slow=False)

    @property
    def endpoints(self) -> list[dict[str, Any]]:
        """All endpoints as the API returns them."""
        with self.state.timeline.settled():
            return [endpoint.resource() for endpoint in self.state.endpoints.values()]

    @property
    def models(self) -> list[dict[str, Any]]:
        """The default version of each model as the API returns it."""
        with self.state.timeline.settled():
            return [model.resource() for model in self.state.models.values()]

    @property
    def contexts(self) -> list[dict[str, Any]]:
        """All contexts, which are experiments and their runs, as the API returns them."""
        with self.state.timeline.settled():
            return [dict(one) for one in self._metadata.contexts.values() if one is not None]

    def clear(self) -> None:
        """Removes all endpoints, models and contexts."""
        with self.state.timeline.lock:
            self.state.clear()
            self._metadata.contexts.clear()

    def _routes(self) -> list[Route]:
        models, garden, metadata = self._models, self._garden, self._metadata
        endpoints = f"{LOCATION}/endpoints"
        return [
            self._route("POST", endpoints, "vertex.endpoints.create", self._create),
            self._route("GET", endpoints, "vertex.endpoints.list", self._list),
            self._route("GET", _ENDPOINT, "vertex.endpoints.get", self._get),
            self._route("PATCH", _ENDPOINT, "vertex.endpoints.patch", self._patch),
            self._route("DELETE", _ENDPOINT, "vertex.endpoints.delete", self._delete),
            self._route("POST", f"{_ENDPOINT}:deployModel", "vertex.endpoints.deployModel", self._deploy),
            self._route("POST", f"{_ENDPOINT}:undeployModel", "vertex.endpoints.undeployModel", self._undeploy),
            self._route("POST", f"{LOCATION}/models:upload", "vertex.models.upload", models.upload),
            self._route("GET", f"{LOCATION}/models", "vertex.models.list", models.list),
            self._route("GET", _MODEL, "vertex.models.get", models.get),
            self._route("PATCH", _MODEL, "vertex.models.patch", models.patch),
            self._route("DELETE", _MODEL, "vertex.models.delete", models.delete),
            self._route("GET", f"{_MODEL}:listVersions", "vertex.models.listVersions", models.list_versions),
            self._route(
                "POST", f"{_MODEL}:mergeVersionAliases", "vertex.models.mergeVersionAliases", models.merge
            ),
            self._route(
                "POST", f"{LOCATION}/metadataStores", "vertex.metadataStores.create", metadata.create_store
            ),
            self._route("POST", f"{_STORE}/contexts", "vertex.contexts.create", metadata.create),
            self._route("GET", _CONTEXT, "vertex.contexts.get", metadata.get),
            self._route("PATCH", _CONTEXT, "vertex.contexts.patch", metadata.patch),
            self._route(
                "POST",
                f"{_CONTEXT}:addContextChildren",
                "vertex.contexts.addContextChildren",
                metadata.add_children,
            ),
            self._route("POST", f"{LOCATION}:deploy", "vertex.modelGarden.deploy", garden.deploy),
            self._route(
                "GET",
                r"/(?P<version>v1|v1beta1)/(?P<name>publishers/[^/]+/models/[^/:]+)",
                "vertex.modelGarden.get",
                garden.get,
            ),
            self._route("GET", _OPERATION, "vertex.operations.get", self._operation),
            self._route("POST", f"{_OPERATION}:wait", "vertex.operations.wait", self._operation),
            self._route("POST", f"{_OPERATION}:cancel", "vertex.operations.cancel", self._cancel),
            self._route("DELETE", _OPERATION, "vertex.operations.delete", self._forget),
            self._route(
                "GET",
                rf"{LOCATION}/(?P<target>(?:[A-Za-z]+/[^/:]+/)*)operations",
                "vertex.operations.list",
                self._operations,
            ),
        ]

    def _route(self, verb: str, path: str, method: Method, work: Work) -> Route:
        def checked(call: RestCall) -> Reply:
            if "location" in call.names:
                check_location(call.names["location"])
                check_host(call.headers.get("host", ""), call.names["location"])
            with self.state.timeline.settled():
                return work(call)

        return Route(verb=verb, pattern=re.compile(path), method=method, work=checked)

    # Endpoints

    def _create(self, call: RestCall) -> Reply:
        state, location = self.state, call.names["location"]
        fields = {name: value for name, value in call.fields().items() if name in _KEPT}
        check_labels(fields.get("labels") or {})
        check_kms_key((fields.get("encryptionSpec") or {}).get("kmsKeyName"), location)
        if fields.get("network") and fields.get("privateServiceConnectConfig"):
            raise RestError(400, "network and private_service_connect_config are mutually exclusive.")
        name = state.new_name(call.names["project"], location, "Endpoint", call.query.get("endpointId", ""))
        if not fields.get("displayName"):
            raise RestError(400, "The display_name of the Endpoint is required.")

        def finish(at: float) -> dict[str, Any]:
            made = Endpoint(name=name, location=location, fields=fields, created_at=at, updated_at=at)
            state.endpoints[name] = made
            return made.resource()

        started = operation(
            state, name, call.names["version"], "CreateEndpointOperationMetadata", ("Endpoint", finish)
        )
        return self._started(started, call)

    def _endpoint(self, call: RestCall) -> Endpoint:
        return self.state.endpoint(call.names["project"], call.names["location"], call.names["endpoint"])

    def _get(self, call: RestCall) -> Reply:
        return json_reply(self._endpoint(call).resource())

    def _list(self, call: RestCall) -> Reply:
        where = parent(call.names["project"], call.names["location"])
        return listed(call, "endpoints", where, self.state.endpoints)

    def _patch(self, call: RestCall) -> Reply:
        endpoint, fields = self._endpoint(call), call.fields()
        mask = [part for part in call.query.get("updateMask", "").split(",") if part]
        for part in mask:
            name = _PATCHED.get(part, part)
            if name == "trafficSplit":
                endpoint.traffic = read_split(fields.get(name) or {}, {one.id for one in endpoint.ready})
            elif name in ("displayName", "description", "labels"):
                check_labels(fields.get("labels") or {})
                endpoint.fields[name] = fields.get(name) or ({} if name == "labels" else "")
            else:
                raise RestError(400, f"The field {part!r} of an Endpoint cannot be updated.")
        if not mask:
            raise RestError(400, "update_mask is required.")
        endpoint.updated_at = self.state.timeline.now()
        return json_reply(endpoint.resource())

    def _delete(self, call: RestCall) -> Reply:
        endpoint, state = self._endpoint(call), self.state
        if endpoint.deployed:
            raise RestError(
                400,
                f"Endpoint {endpoint.name} has deployed or being-deployed DeployedModel(s): "
                f"{', '.join(endpoint.deployed)}. Undeploy them first.",
                "FAILED_PRECONDITION",
            )
        return self._started(deletion(state, state.endpoints, endpoint.name, call.names["version"]), call)

    # Deployments

    def _deploy(self, call: RestCall) -> Reply:
        endpoint, state, fields = self._endpoint(call), self.state, call.fields()
        requested = dict(fields.get("deployedModel") or {})
        own = re.fullmatch(r"projects/([^/]+)/locations/([^/]+)/models/([^/]+)", str(requested.get("model") or ""))
        if own is None:
            raise RestError(400, f"Invalid Model resource name: {requested.get('model')!r}.")
        _, model = state.model(*own.groups())
        if own[2] != endpoint.location:
            raise RestError(400, f"The Model {model.name} is not in the location of the Endpoint {endpoint.name}.")
        resources = requested.get("dedicatedResources")
        if not resources:
            raise RestError(400, f"'automatic_resources' is not supported for Model {model.name}.")
        hardware = read_hardware(resources, endpoint.location)
        check_quota(state, project_number(call.names["project"]), endpoint.location, hardware, call.fault)
        deployed_id = str(requested.get("id") or state.next_id())
        if deployed_id in endpoint.deployed:
            raise RestError(409, f"The Endpoint already has a DeployedModel with ID {deployed_id}.")
        deployed = Deployed(
            id=deployed_id, model=model, fields=requested, hardware=hardware, created_at=state.timeline.now()
        )
        split = read_split(fields.get("trafficSplit") or {}, {"0", *(one.id for one in endpoint.ready)})
        begin(state, endpoint, deployed)
        settle = complete(endpoint, deployed, split)

        def finish(at: float) -> dict[str, Any]:
            settle(at)
            return {"deployedModel": endpoint.deployed_resource(deployed)}

        started = operation(
            state,
            endpoint.name,
            call.names["version"],
            "DeployModelOperationMetadata",
            ("DeployModelResponse", finish),
            failure=outcome(deployed, endpoint, call.fault),
            undo=remove(state, endpoint, deployed),
        )
        return self._started(started, call)

    def _undeploy(self, call: RestCall) -> Reply:
        endpoint, state = self._endpoint(call), self.state
        deployed = endpoint.deployed.get(str(call.fields().get("deployedModelId") or ""))
        if deployed is None or deployed.deployed_at is None:
            raise RestError(404, f"The DeployedModel is not on the Endpoint {endpoint.name}, or not yet.")
        check_idle(state, endpoint.name)
        others = {one.id for one in endpoint.ready} - {deployed.id}
        split = read_split(call.fields().get("trafficSplit") or {}, others) or endpoint.traffic
        if others and split.get(deployed.id):
            raise RestError(
                400,
                f"The DeployedModel {deployed.id} has {split[deployed.id]} % of the traffic of {endpoint.name}.",
                "FAILED_PRECONDITION",
            )
        endpoint.traffic = split
        take_off = remove(state, endpoint, deployed)

        def finish(at: float) -> dict[str, Any]:
            take_off(at)
            return {}

        answer = ("UndeployModelResponse", finish)
        started = operation(state, endpoint.name, call.names["version"], "UndeployModelOperationMetadata", answer)
        return self._started(started, call)

    # Operations

    def _started(self, operation: Operation, call: RestCall) -> Reply:
        return json_reply(self.state.operations.start(operation, call.fault).resource())

    def _operation(self, call: RestCall) -> Reply:
        return json_reply(self.state.operations.get(_operation_name(call)).resource())

    def _cancel(self, call: RestCall) -> Reply:
        self.state.operations.cancel(_operation_name(call))
        return json_reply({})

    def _forget(self, call: RestCall) -> Reply:
        self.state.operations.forget(_operation_name(call))
        return json_reply({})

    def _operations(self, call: RestCall) -> Reply:
        target = call.names["target"].rstrip("/")
        name = parent(call.names["project"], call.names["location"]) + (f"/{target}" if target else "")
        found = [one.resource() for one in self.state.operations.under(name)]
        return json_reply(paged(call, "operations", found, is_filtered=False))


def _operation_name(call: RestCall) -> str:
    where = parent(call.names["project"], call.names["location"])
    return f"{where}/{call.names['target']}operations/{call.names['operation']}"


def routes(vertex: Vertex) -> list[web.RouteDef]:
    """Returns the routes of endpoints, models and operations; behind those of their predictions."""
    version = "/{version:v1|v1beta1}"
    return [
        web.post(f"{version}/projects/{{project}}/locations/{{location:[^/:]+}}:deploy", vertex.service.serve),
        web.get(f"{version}/publishers/{{tail:[^/]+/models/.+}}", vertex.service.serve),
        web.route(
            "*",
            "/{version:v1|v1beta1|ui}/projects/{project}/locations/{location}/{tail:(?:endpoints|models|metadataStores|operations).*}",
            vertex.service.serve,
        ),
    ]
