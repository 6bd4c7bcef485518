"""What the emulated Vertex AI holds: endpoints, what is deployed to them, uploaded models."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_llmbeam.sandbox.billing.bill import Bill
from airflow_provider_llmbeam.sandbox.core.operations import Operations
from airflow_provider_llmbeam.sandbox.core.rest import RestError
from airflow_provider_llmbeam.sandbox.core.timeline import Timeline
from airflow_provider_llmbeam.sandbox.models.catalog import Served
from airflow_provider_llmbeam.sandbox.storage.state import timestamp
from airflow_provider_llmbeam.sandbox.vertex.checks import DEDICATED_SUFFIX, Hardware, project_number

_FIRST_ID = 4_611_686_018_427_387_904


@dataclass(kw_only=True)
class Model:
    """An uploaded model, with one version.

    Attributes:
        name: In full.
        fields: As uploaded.
        served: What its container serves.
        created_at: Seconds since the epoch.
    """

    name: str
    fields: dict[str, Any]
    served: Served
    created_at: float

    def resource(self) -> dict[str, Any]:
        """Return it as the API shows it."""
        at = timestamp(self.created_at)
        return {
            **self.fields,
            "name": self.name,
            "versionId": "1",
            "versionAliases": ["default"],
            "createTime": at,
            "updateTime": at,
            "versionCreateTime": at,
            "versionUpdateTime": at,
            "supportedDeploymentResourcesTypes": ["DEDICATED_RESOURCES"],
        }


@dataclass(kw_only=True)
class Deployed:
    """A model on an endpoint.

    Attributes:
        id: Among those of the endpoint.
        model: Which.
        fields: As asked for.
        hardware: What it runs on.
        created_at: When it was asked for, in seconds since the epoch.
        deployed_at: Since when it is deployed; None while it is being deployed.
    """

    id: str
    model: Model
    fields: dict[str, Any]
    hardware: Hardware
    created_at: float
    deployed_at: float | None = None

    def resource(self) -> dict[str, Any]:
        """Return it as the API shows it."""
        return {
            **self.fields,
            "id": self.id,
            "model": self.model.name,
            "modelVersionId": "1",
            "displayName": self.fields.get("displayName") or self.model.fields.get("displayName", ""),
            "createTime": timestamp(self.created_at),
        }


@dataclass(kw_only=True)
class Endpoint:
    """An endpoint.

    Attributes:
        name: In full, with the project's number.
        location: Region.
        fields: As created and patched.
        created_at: Seconds since the epoch.
        updated_at: Seconds since the epoch.
        deployed: Models on it and on their way, by id.
        traffic: Percent of the requests, by id.
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
        """As they are now."""
        labels: Mapping[str, str] = self.fields.get("labels") or {}
        return labels

    @property
    def dedicated_dns(self) -> str:
        """The host of its own; "" when it shares that of its region."""
        if not self.fields.get("dedicatedEndpointEnabled"):
            return ""
        _, project, _, location, _, own = self.name.split("/")
        return f"{own}.{location}-{project}{DEDICATED_SUFFIX}"

    @property
    def ready(self) -> list[Deployed]:
        """What is deployed, the first one first."""
        return [one for one in self.deployed.values() if one.deployed_at is not None]

    def resource(self) -> dict[str, Any]:
        """Return it as the API shows it; what is being deployed is not seen yet."""
        shown = {
            **self.fields,
            "name": self.name,
            "createTime": timestamp(self.created_at),
            "updateTime": timestamp(self.updated_at),
        }
        if self.ready:
            shown["deployedModels"] = [one.resource() for one in self.ready]
        if self.traffic:
            shown["trafficSplit"] = dict(self.traffic)
        if self.dedicated_dns:
            shown["dedicatedEndpointDns"] = self.dedicated_dns
        return shown


@dataclass(kw_only=True)
class VertexState:
    """Everything that Vertex AI holds; read and changed under the timeline's lock.

    Attributes:
        timeline: What is due.
        operations: Long-running ones.
        bill: For what is deployed.
        gpu_quota: Location and accelerator to number; None is without limit.
        warm_seconds: How long a model that is deployed answers 503 at first.
    """

    timeline: Timeline
    operations: Operations
    bill: Bill
    gpu_quota: Mapping[str, Mapping[str, int]] | None
    warm_seconds: float
    endpoints: dict[str, Endpoint] = field(default_factory=dict)
    models: dict[str, Model] = field(default_factory=dict)
    ids: itertools.count[int] = field(default_factory=lambda: itertools.count(_FIRST_ID))

    def next_id(self) -> str:
        """Return an id as the service makes them up."""
        return str(next(self.ids))

    def endpoint(self, project: str, location: str, own: str) -> Endpoint:
        """Return an endpoint.

        Raises:
            RestError: There is none.
        """
        name = f"{parent(project, location)}/endpoints/{own}"
        found = self.endpoints.get(name)
        if found is None:
            raise RestError(404, f"The Endpoint does not exist: {name}")
        return found

    def model(self, project: str, location: str, own: str) -> Model:
        """Return a model; its version, after an "@", must be the only one there is.

        Raises:
            RestError: There is none.
        """
        own, _, version = own.partition("@")
        name = f"{parent(project, location)}/models/{own}"
        found = self.models.get(name)
        if found is None or version not in ("", "1", "default"):
            raise RestError(404, f"The Model does not exist: {name}{'@' if version else ''}{version}")
        return found

    def homes(self, model: Model) -> list[Endpoint]:
        """Return the endpoints to which a model is, or is being, deployed."""
        return [
            endpoint
            for endpoint in self.endpoints.values()
            if any(one.model is model for one in endpoint.deployed.values())
        ]

    def clear(self) -> None:
        """Forget all."""
        self.endpoints.clear()
        self.models.clear()
        self.operations.clear()
        self.ids = itertools.count(_FIRST_ID)


def parent(project: str, location: str) -> str:
    """Return the name of a project's location, as the service answers it."""
    return f"projects/{project_number(project)}/locations/{location}"
