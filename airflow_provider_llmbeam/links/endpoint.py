"""Link to an endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from airflow_provider_llmbeam.links.job import CONSOLE
from airflow_provider_llmbeam.links.stored import XComLink
from airflow_provider_llmbeam.spec.endpoint.identity import run_service_of


class EndpointLink(XComLink):
    """Link to the endpoint or the service in the Google Cloud console."""

    name = "Open endpoint"
    xcom_key = "llmbeam_endpoint_link"


def endpoint_url(model: Mapping[str, Any]) -> str | None:
    """Returns the page of a Vertex AI endpoint, or the list of services filtered for one on Cloud Run.

    Args:
        model: A model spec that `ProvisionEndpointOperator` returned.
    """
    if model["type"] == "vertex_endpoint":
        _, project, _, location, _, endpoint = model["endpoint"].split("/")
        path = f"vertex-ai/online-prediction/locations/{quote(location)}/endpoints/{quote(endpoint)}"
        return f"{CONSOLE}/{path}?{urlencode({'project': project})}"
    service = run_service_of(str(model.get("id_token_audience")))
    return None if service is None else f"{CONSOLE}/run?{urlencode({'filter': service})}"
