"""Request files and result files of batch inference: one line per prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.providers.batch_format import BatchFormat
from airflow_provider_llmbeam.spec.model import Embedding, GeminiModel, Generation, Model, OpenAIModel


def batch_format(
    model: Model,
    generation: Generation,
    output_schema: Mapping[str, Any] | None,
    embedding: Embedding | None = None,
) -> BatchFormat:
    """Returns the format of the files of a model.

    Args:
        model: The model.
        generation: Parameters of the texts.
        output_schema: JSON Schema of the texts.
        embedding: Parameters of the vectors, to request vectors instead of texts.

    Raises:
        JobSpecError: No provider has batch inference for this model.
    """
    if embedding is not None:
        return _embedding_format(model, embedding)
    match model:
        case GeminiModel():
            from airflow_provider_llmbeam.providers.gemini.batch_format import DeveloperFormat, VertexFormat

            return (VertexFormat if model.project else DeveloperFormat)(model, generation, output_schema)
        case OpenAIModel():
            from airflow_provider_llmbeam.providers.openai.batch_format import OpenAIFormat

            return OpenAIFormat(model, generation, output_schema)
    raise _no_format(f"a model of type {model.type!r}")


def _embedding_format(model: Model, embedding: Embedding) -> BatchFormat:
    match model:
        case GeminiModel(project=None):
            from airflow_provider_llmbeam.providers.gemini.batch_format import DeveloperEmbeddingFormat

            return DeveloperEmbeddingFormat(model, embedding)
        case OpenAIModel():
            from airflow_provider_llmbeam.providers.openai.batch_format import OpenAIEmbeddingFormat

            return OpenAIEmbeddingFormat(model, embedding)
    raise _no_format(f"embeddings of model {model.name!r} of type {model.type!r}")


def _no_format(what: str) -> JobSpecError:
    return JobSpecError(
        f"`inference.mode`: no provider has batch inference for {what}. Nothing was sent or billed. Use mode "
        "'online'."
    )
