"""Request files and result files of batch inference: one line per prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_llmbeam.engine.batch_formats.base import BatchFormat
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.model import GeminiModel, Generation, Model, OpenAIModel


def batch_format(model: Model, generation: Generation, output_schema: Mapping[str, Any] | None) -> BatchFormat:
    """Returns the format of the files of a model.

    Raises:
        JobSpecError: No provider has batch inference for this model.
    """
    match model:
        case GeminiModel():
            from airflow_provider_llmbeam.engine.batch_formats.gemini import DeveloperFormat, VertexFormat

            return (VertexFormat if model.project else DeveloperFormat)(model, generation, output_schema)
        case OpenAIModel():
            from airflow_provider_llmbeam.engine.batch_formats.openai import OpenAIFormat

            return OpenAIFormat(model, generation, output_schema)
    raise JobSpecError(
        f"`inference.mode`: no provider has batch inference for a model of type {model.type!r}. Nothing was sent "
        "or billed. Use mode 'online'."
    )
