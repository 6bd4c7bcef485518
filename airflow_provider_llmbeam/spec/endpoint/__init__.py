"""Endpoints: model servers with GPUs that are provisioned for a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.base import problems_of
from airflow_provider_llmbeam.spec.endpoint.cloud_run import CloudRunEndpoint
from airflow_provider_llmbeam.spec.endpoint.vertex_ai import Canary, VertexEndpoint
from airflow_provider_llmbeam.spec.fields.text import from_text

__all__ = ["Canary", "CloudRunEndpoint", "Endpoint", "VertexEndpoint", "parse_endpoint"]

Endpoint = Annotated[VertexEndpoint | CloudRunEndpoint, Field(discriminator="type"), BeforeValidator(from_text)]
_ENDPOINT: TypeAdapter[VertexEndpoint | CloudRunEndpoint] = TypeAdapter(Endpoint)


def parse_endpoint(
    data: Mapping[str, Any] | VertexEndpoint | CloudRunEndpoint,
) -> VertexEndpoint | CloudRunEndpoint:
    """Builds an endpoint from plain data.

    Raises:
        JobSpecError: Names each invalid field, its value and the expected value.
    """
    try:
        return _ENDPOINT.validate_python(data)
    except ValidationError as error:
        found = " ".join(str(problem) for problem in problems_of(error, root=Endpoint))
        raise JobSpecError(f"{found}") from None
