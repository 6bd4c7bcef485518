"""What waiting for an endpoint, and removing one, need of the hook of one location."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_provider_llmbeam.endpoints.fault import Fault
from airflow_provider_llmbeam.endpoints.resource import EndpointSnapshot, Resource, RunningOperation
from airflow_provider_llmbeam.probe.answer import Answer
from airflow_provider_llmbeam.spec.endpoint import CloudRunEndpoint, VertexEndpoint


@dataclass(frozen=True, slots=True)
class EndpointPlan:
    """What is to come up, and whose it is.

    Attributes:
        spec: What was asked for.
        key: See `spec.identity.identity`.
        labels: Of everything that is made.
    """

    spec: VertexEndpoint | CloudRunEndpoint
    key: str
    labels: Mapping[str, str]


class EndpointPlatform(Protocol):
    """One location of Vertex AI or Cloud Run."""

    location: str

    @property
    def project(self) -> str:
        """The project that is billed."""

    def check(self, plan: EndpointPlan) -> None:
        """Sees whether it can come up, as far as that can be known before anything is billed."""

    def look(self, plan: EndpointPlan, operation: str | None) -> EndpointSnapshot:
        """Looks at one endpoint."""

    def make(self, step: str, plan: EndpointPlan) -> str | Fault | None:
        """Asks for a part.

        Returns:
            The operation; `None` where it is there already; or why it was refused.
        """

    def adopt(self, plan: EndpointPlan, seen: EndpointSnapshot) -> bool:
        """Labels what is there; `False`: not now, something is being done to it."""

    def ask(self, plan: EndpointPlan, seen: EndpointSnapshot) -> Answer:
        """Asks the model for a few words."""

    def model_spec(self, plan: EndpointPlan, seen: EndpointSnapshot) -> dict[str, Any]:
        """A model spec for a job that asks this endpoint."""

    def find(self, key: str | None) -> list[Resource]:
        """Finds everything of an endpoint, or of all of ours; see `Resource.key`."""

    def running(self, key: str) -> list[RunningOperation]:
        """Finds what is being done to an endpoint."""

    def remove(self, part: Resource) -> None:
        """Asks for the removal of a part, or of what it has deployed where that must come first."""

    def cancel(self, operation: str) -> None:
        """Asks for the end of an operation."""


class PlatformFactory(Protocol):
    """Makes the hook of a location."""

    def __call__(self, location: str) -> EndpointPlatform:
        """Reads the Airflow connection."""
