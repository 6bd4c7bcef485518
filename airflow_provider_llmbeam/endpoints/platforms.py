"""The hook of a location, by the kind of endpoint."""

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
    """Makes hooks of one kind.

    Args:
        endpoint_type: Vertex AI or Cloud Run.
        project: Left out, that of the connection or the credentials.
        gcp_conn_id: Airflow connection.
        impersonation_chain: Service account to act as, or several.
    """

    def connect(location: str) -> EndpointPlatform:
        # Here and not above: a Dag file that defers must not load Google's clients.
        if endpoint_type == "vertex":
            from airflow_provider_llmbeam.hooks.vertex_ai import VertexAIHook

            return VertexAIHook(location, project, gcp_conn_id, impersonation_chain)
        from airflow_provider_llmbeam.hooks.cloud_run import CloudRunHook

        return CloudRunHook(location, project, gcp_conn_id, impersonation_chain)

    return connect
