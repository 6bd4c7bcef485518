"""The state of the emulated Vertex AI: endpoints, deployed models, registered models. No HTTP."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llmbeam_sandbox.billing.settings import EndpointSettings
from llmbeam_sandbox.billing.state import Bill
from llmbeam_sandbox.core.checks import project_number
from llmbeam_sandbox.core.clock import Timeline, timestamp
from llmbeam_sandbox.core.operations import Operations
from llmbeam_sandbox.core.rest import RestError
from llmbeam_sandbox.vertex.checks import (
    DEDICATED_SUFFIX,
    PEERED_SUFFIX,
    Hardware,
    check_id,
)
from llmbeam_sandbox.vertex.registry import Model, ModelVersion

_FIRST_ID = 4_611_686_018_427_387_904


@dataclass(kw_only=True)
class Deployed:
    """A model on an endpoint.

    Attributes:
        id: Id, unique on the endpoint.
        model: The version of a model.
        fields: Fields of the request.
        hardware: Hardware of the deployment.
        created_at: Time of the request, in seconds since the epoch.
        deployed_at: Time of the completed deployment, in seconds since the epoch; None before.
    """

    id: str
    model: ModelVersion
    fields: dict[str, Any]
    hardware: Hardware
    created_at: float
    deployed_at: float | None = None

    def resource(self) -> dict[str, Any]:
        """Returns it as the API returns it."""
        return {
            **self.fields,
            "id": self.id,
            "model": self.model.name,
            "modelVersionId": self.model.id,
            "displayName": self.fields.get("displayName") or self.model.fields.get("displayName", ""),
            "createTime": timestamp(self.created_at),
        }


@dataclass(kw_only=True)
class Endpoint:
    """An endpoint.

    Attributes:
        name: Full name, with the project's number.
        location: Region.
        fields: Fields as created and patched.
        created_at: Time of creation, in seconds since the epoch.
        updated_at: Time of the last change, in seconds since the epoch.
        deployed: Models that are deployed or being deployed, by id.
        traffic: Share of the requests in percent, by id.
    """

    name: str
    location: str
    fields: dict[str, Any]
    created_at: float
    updated_at: float
    deployed: dict[str, Deployed] = field(default_factory=dict)
    traffic: dict[str, int] = field(default_factory=dict)

    @property
    def labels(self) -> Mapping[str, str]:
        """Current labels."""
        labels: Mapping[str, str] = self.fields.get("labels") or {}
        return labels

    @property
    def peered_host(self) -> str:
        """Host in its peered network; "" without one."""
        return f"{self.name.rpartition('/')[2]}{PEERED_SUFFIX}" if self.fields.get("network") else ""

    @property
    def is_connected(self) -> bool:
        """Whether it is reached by Private Service Connect alone."""
        return bool((self.fields.get("privateServiceConnectConfig") or {}).get("enablePrivateServiceConnect"))

    def deployed_resource(self, deployed: Deployed) -> dict[str, Any]:
        """Returns a deployed model as the API returns it, with its private addresses."""
        private: dict[str, str] = {}
        if self.peered_host:
            base = f"http://{self.peered_host}/v1/models/{deployed.id}"
            private = {
                "predictHttpUri": f"{base}:predict",
                "explainHttpUri": f"{base}:explain",
                "healthHttpUri": base,
            }
        elif self.is_connected:
            private = {"serviceAttachment": self._service_attachment}
        return {**deployed.resource(), **({"privateEndpoints": private} if private else {})}

    @property
    def _service_attachment(self) -> str:
        _, project, _, location, _, own = self.name.split("/")
        return f"projects/{project}-tp/regions/{location}/serviceAttachments/gkedpm-{own}"

    @property
    def dedicated_dns(self) -> str:
        """Host of its own; "" when it shares that of its region."""
        if not self.fields.get("dedicatedEndpointEnabled"):
            return ""
        _, project, _, location, _, own = self.name.split("/")
        return f"{own}.{location}-{project}{DEDICATED_SUFFIX}"

    @property
    def ready(self) -> list[Deployed]:
        """Deployed models, the oldest first."""
        return [one for one in self.deployed.values() if one.deployed_at is not None]

    def resource(self) -> dict[str, Any]:
        """Returns the endpoint as the API returns it, without models that are still being deployed."""
        shown = {
            **self.fields,
            "name": self.name,
            "createTime": timestamp(self.created_at),
            "updateTime": timestamp(self.updated_at),
        }
        if self.ready:
            shown["deployedModels"] = [self.deployed_resource(one) for one in self.ready]
            if self.is_connected:
                config = {
                    **self.fields["privateServiceConnectConfig"],
                    "serviceAttachment": self._service_attachment,
                }
                shown["privateServiceConnectConfig"] = config
        if self.traffic:
            shown["trafficSplit"] = dict(self.traffic)
        if self.dedicated_dns:
            shown["dedicatedEndpointDns"] = self.dedicated_dns
        return shown


@dataclass(kw_only=True)
class VertexState:
    """The state of Vertex AI; read and changed under the timeline's lock.

    Attributes:
        timeline: Scheduled actions.
        operations: Long-running operations.
        bill: Charges for deployed models.
        settings: Durations and the quota of accelerators.
    """

    timeline: Timeline
    operations: Operations
    bill: Bill
    settings: EndpointSettings
    endpoints: dict[str, Endpoint] = field(default_factory=dict)
    models: dict[str, Model] = field(default_factory=dict)
    ids: itertools.count[int] = field(default_factory=lambda: itertools.count(_FIRST_ID))

    def next_id(self) -> str:
        """Returns an id in the format of the service."""
        return str(next(self.ids))

    def new_name(self, project: str, location: str, kind: str, own: str) -> str:
        """Returns the name of a resource to create.

        Args:
            project: Project as the caller wrote it.
            location: Region.
            kind: "Endpoint" or "Model".
            own: Id that the caller chose; "" leaves the choice to the service.

        Raises:
            RestError: The id is invalid, or taken.
        """
        if own:
            check_id(own, f"{kind.lower()}_id")
        own = own or self.next_id()
        name = f"{parent(project, location)}/{kind.lower()}s/{own}"
        if name in self.endpoints or name in self.models or self.operations.running(name):
            raise RestError(409, f"{kind} with ID {own} already exists: {name}")
        return name

    def endpoint(self, project: str, location: str, own: str) -> Endpoint:
        """Returns an endpoint.

        Raises:
            RestError: There is none of that id.
        """
        name = f"{parent(project, location)}/endpoints/{own}"
        found = self.endpoints.get(name)
        if found is None:
            raise RestError(404, f"The Endpoint does not exist: {name}")
        return found

    def model(self, project: str, location: str, own: str) -> tuple[Model, ModelVersion]:
        """Returns a model, and the version that a number or an alias after an "@" names, or the default one.

        Raises:
            RestError: There is no such model, or it has no such version.
        """
        own, _, version = own.partition("@")
        name = f"{parent(project, location)}/models/{own}"
        model = self.models.get(name)
        found = None if model is None else model.find(version)
        if model is None or found is None:
            raise RestError(404, f"The Model does not exist: {name}{'@' if version else ''}{version}")
        return model, found

    def endpoints_of(self, model: Model) -> list[Endpoint]:
        """Returns the endpoints to which a version of a model is, or is being, deployed."""
        return [
            endpoint
            for endpoint in self.endpoints.values()
            if any(one.model.name == model.name for one in endpoint.deployed.values())
        ]

    def clear(self) -> None:
        """Removes all endpoints, models and operations."""
        self.endpoints.clear()
        self.models.clear()
        self.operations.clear()
        self.ids = itertools.count(_FIRST_ID)


def parent(project: str, location: str) -> str:
    """Returns the name of a project's location as the service returns it."""
    return f"projects/{project_number(project)}/locations/{location}"
