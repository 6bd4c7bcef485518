"""One file per kind of model server; each loads its client only when it is opened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_llmbeam.engine.backends.base import Backend
from airflow_provider_llmbeam.engine.backends.embeddings import EmbeddingBackend
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.model import (
    EchoModel,
    Embedding,
    GeminiModel,
    Generation,
    Model,
    OpenAIModel,
    VertexEndpointModel,
)


def open_backend(
    model: Model,
    generation: Generation,
    output_schema: Mapping[str, Any] | None,
    embedding: Embedding | None = None,
) -> Backend:
    """Opens the client for a model. Call it where the client is used: none of them pickles.

    Args:
        model: The model.
        generation: Parameters of a text.
        output_schema: JSON Schema of a text.
        embedding: Parameters of a vector; given, vectors are asked for instead of texts.

    Raises:
        JobSpecError: A key or credentials are missing.
    """
    if embedding is not None:
        return _open_embeddings(model, embedding)
    match model:
        case GeminiModel():
            from airflow_provider_llmbeam.engine.backends.gemini import GeminiBackend

            return GeminiBackend(model, generation, output_schema)
        case OpenAIModel():
            from airflow_provider_llmbeam.engine.backends.openai import OpenAIBackend

            return OpenAIBackend(model, generation, output_schema)
        case VertexEndpointModel():
            from airflow_provider_llmbeam.engine.backends.vertex_endpoint import open_vertex_endpoint

            return open_vertex_endpoint(model, generation, output_schema)
        case EchoModel():
            from airflow_provider_llmbeam.engine.backends.echo import EchoBackend, StaticEchoBackend

            if model.padded_tokens_per_second is not None:
                return StaticEchoBackend(model, model.padded_tokens_per_second)
            return EchoBackend(model)


def _open_embeddings(model: Model, embedding: Embedding) -> EmbeddingBackend:
    match model:
        case GeminiModel():
            from airflow_provider_llmbeam.engine.backends.gemini_embeddings import GeminiEmbeddings

            return GeminiEmbeddings(model, embedding)
        case OpenAIModel():
            from airflow_provider_llmbeam.engine.backends.openai_embeddings import OpenAIEmbeddings

            return OpenAIEmbeddings(model, embedding)
        case VertexEndpointModel():
            raise JobSpecError(
                "A model of type 'vertex_endpoint' is asked for texts alone, and vectors were asked for. Nothing "
                "was sent or billed. Take a model of type 'gemini' or 'openai'."
            )
        case EchoModel():
            from airflow_provider_llmbeam.engine.backends.echo import EchoEmbeddings

            return EchoEmbeddings(model, embedding)
