"""Selects the platform of an endpoint by its type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from airflow_provider_llmbeam.endpoints.platform import EndpointPlatform, PlatformFactory

EndpointType = Literal["vertex", "cloud_run"]
ENDPOINT_TYPES: tuple[EndpointType, ...] = ("vertex", "cloud_run")


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
