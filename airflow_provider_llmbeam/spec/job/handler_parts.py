"""The parts of a model handler that an author of a Beam pipeline may give as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator

from airflow_provider_llmbeam.spec.base import SpecModel
from airflow_provider_llmbeam.spec.limits import Batching, Limits
from airflow_provider_llmbeam.spec.model.generation import Embedding, Generation
from airflow_provider_llmbeam.spec.model.model import Model
from airflow_provider_llmbeam.spec.prompt.schema_type import checked_schema, schema_of


class HandlerParts(SpecModel):
    """The parts of a model handler, as values, see `LLMModelHandler`.

    Attributes:
        model: The model.
        generation: Parameters of the answer.
        limits: Quotas, timeouts and retries.
        batching: Batch size and length buckets.
        embedding: Parameters of vectors; `None` for texts.
        output_schema: JSON Schema of the answer.
        max_repairs: Maximum number of repeated requests for an answer that does not match it.
    """

    model: Model
    generation: Generation
    limits: Limits
    batching: Batching
    embedding: Embedding | None
    output_schema: Annotated[Mapping[str, Any] | None, BeforeValidator(schema_of)]
    max_repairs: Annotated[int, Field(ge=0, le=5)]

    _is_schema = field_validator("output_schema")(checked_schema)
