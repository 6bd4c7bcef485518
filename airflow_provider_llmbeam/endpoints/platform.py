"""The interface between an endpoint and the service that it runs on, and the choice of the service by its type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from airflow_provider_llmbeam.endpoints.fault import Fault
from airflow_provider_llmbeam.endpoints.resource import (
    EndpointSnapshot,
    LostReply,
    Resource,
    RunningOperation,
)
from airflow_provider_llmbeam.exceptions import CloudError
from airflow_provider_llmbeam.spec.endpoint import CloudRunEndpoint, VertexEndpoint

EndpointType = Literal["vertex", "cloud_run"]
ENDPOINT_TYPES: tuple[EndpointType, ...] = ("vertex", "cloud_run")


@dataclass(frozen=True, slots=True)
class EndpointPlan:
    """An endpoint to provision.

    Attributes:
        spec: Spec of the endpoint.
        key: Identity of the endpoint, see `spec.identity.identity`.
        labels: Labels of every resource that is created.
    """

    spec: VertexEndpoint | CloudRunEndpoint
    key: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SentRequests:
    """What is known of the operations that create requests of an endpoint have started.

    Attributes:
        spec: Spec of the endpoint.
        operation: Name of the operation that was started last; `None` if none is known.
        lost: When a request may have started one whose name is not known; `None` if none did.
    """

    spec: VertexEndpoint | CloudRunEndpoint
    operation: str | None = None
    lost: LostReply | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of one small request to the model of an endpoint.

    Attributes:
        refusal: Reason why there was no answer; `None` if there was one.
        may_help_to_wait: Whether the server may still be loading the model.
    """

    refusal: str | None = None
    may_help_to_wait: bool = False


class EndpointPlatform(Protocol):
    """Vertex AI or Cloud Run in one location; every method raises a `CloudError` if a request fails."""

    @property
    def location(self) -> str:
        """Region."""

    @property
    def project(self) -> str:
        """Google Cloud project that is billed."""

    def check(self, plan: EndpointPlan) -> None:
        """Checks what can be known before anything is billed.

        Raises:
            JobSpecError: The endpoint cannot be provisioned.
        """

    def poll(self, plan: EndpointPlan, operation: str | None, lost: LostReply | None = None) -> EndpointSnapshot:
        """Returns the present state of an endpoint.

        Args:
            plan: The endpoint.
            operation: Name of the operation that was started last.
            lost: When a request may have started an operation whose name is not known.
        """

    def create(self, step: str, plan: EndpointPlan) -> str | Fault | None:
        """Requests the creation of a resource.

        Args:
            step: The missing resource, see `EndpointSnapshot.missing`.
            plan: The endpoint.

        Returns:
            Name of the operation; `None` if the resource exists already; or the fault if the request was refused.
        """

    def adopt(self, plan: EndpointPlan, snapshot: EndpointSnapshot) -> bool:
        """Labels the existing resources with the present try; returns `False` if an operation prevents that."""

    def probe(self, plan: EndpointPlan, snapshot: EndpointSnapshot) -> Answer:
        """Sends a small request to the model."""

    def model_spec(self, plan: EndpointPlan, snapshot: EndpointSnapshot) -> dict[str, Any]:
        """Returns the model spec of a job that uses this endpoint."""

    def find(self, key: str | None) -> tuple[list[Resource], CloudError | None]:
        """Finds the resources of an endpoint; with `None` those of every endpoint of this package.

        Returns:
            The resources, and the error if models, which cost nothing, could not be found.
        """

    def running_operations(self, key: str) -> list[RunningOperation]:
        """Finds the unfinished operations whose names begin with those of the resources of an endpoint."""

    def started_operations(self, sent: SentRequests) -> list[RunningOperation]:
        """Finds the unfinished operations that create requests have started, and those that they may have."""

    def remove(self, resource: Resource) -> None:
        """Requests the deletion of a resource, or its undeployment where that must come first."""

    def cancel(self, operation: str) -> None:
        """Requests the cancellation of an operation."""


class PlatformFactory(Protocol):
    """Makes the platform of a location."""

    def __call__(self, location: str) -> EndpointPlatform:
        """Makes the platform; reads the Airflow connection when the first request is sent."""


def platform_factory(
    endpoint_type: EndpointType,
    project: str | None,
    gcp_conn_id: str,
    impersonation_chain: str | Sequence[str] | None,
) -> PlatformFactory:
    """Returns a factory that makes the platform of one location.

    Args:
        endpoint_type: Vertex AI or Cloud Run.
        project: Google Cloud project; by default that of the connection or of its credentials.
        gcp_conn_id: Airflow connection of type Google Cloud.
        impersonation_chain: Service account to impersonate, or a chain of them.
    """

    def connect(location: str) -> EndpointPlatform:
        # Imported here: a Dag file with a deferrable operator must not load Google's clients.
        if endpoint_type == "vertex":
            from airflow_provider_llmbeam.endpoints.platforms.vertex_ai import VertexAIPlatform
            from airflow_provider_llmbeam.hooks.vertex_ai import VertexAIHook

            return VertexAIPlatform(VertexAIHook(location, project, gcp_conn_id, impersonation_chain))
        from airflow_provider_llmbeam.endpoints.platforms.cloud_run import CloudRunPlatform
        from airflow_provider_llmbeam.hooks.cloud_run import CloudRunHook

        return CloudRunPlatform(CloudRunHook(location, project, gcp_conn_id, impersonation_chain))

    return connect
