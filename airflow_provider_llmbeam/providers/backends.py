"""Clients of model servers, one module per API; each imports its libraries only when it is opened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_llmbeam.engine.backend import Backend
from airflow_provider_llmbeam.engine.prefix.head import CachedHead
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.providers.embeddings import EmbeddingBackend
from airflow_provider_llmbeam.spec.model import (
    EchoModel,
    Embedding,
    GeminiModel,
    Generation,
    Model,
    OpenAIModel,
    VertexEndpointModel,
)
from airflow_provider_llmbeam.spec.model.tier import AskedTier


def open_backend(
    model: Model,
    generation: Generation,
    output_schema: Mapping[str, Any] | None,
    embedding: Embedding | None = None,
    cached_head: CachedHead | None = None,
    *,
    asked_tier: AskedTier = "standard",
) -> Backend:
    """Opens the client of a model, in the process that uses it, as clients cannot be pickled.

    Args:
        model: The model.
        generation: Parameters of the texts.
        output_schema: JSON Schema of the texts.
        embedding: Parameters of the vectors, to request vectors instead of texts.
        cached_head: What the provider has stored of the prompts of Gemini.
        asked_tier: Tier that requests of Gemini and OpenAI ask for.

    Raises:
        JobSpecError: A key or credentials are missing.
    """
    if embedding is not None:
        return _open_embeddings(model, embedding)
    match model:
        case GeminiModel():
            from airflow_provider_llmbeam.providers.gemini.client import GeminiBackend

            return GeminiBackend(model, generation, output_schema, cached_head, asked_tier=asked_tier)
        case OpenAIModel():
            from airflow_provider_llmbeam.providers.openai.client import OpenAIBackend

            return OpenAIBackend(model, generation, output_schema, asked_tier=asked_tier)
        case VertexEndpointModel():
            from airflow_provider_llmbeam.providers.vertex_ai.endpoint import open_vertex_endpoint

            return open_vertex_endpoint(model, generation, output_schema)
        case EchoModel():
            from airflow_provider_llmbeam.providers.echo import EchoBackend, StaticEchoBackend

            if model.padded_tokens_per_second is not None:
                return StaticEchoBackend(model, model.padded_tokens_per_second)
            return EchoBackend(model)


def _open_embeddings(model: Model, embedding: Embedding) -> EmbeddingBackend:
    match model:
        case GeminiModel():
            from airflow_provider_llmbeam.providers.gemini.embeddings import GeminiEmbeddings

            return GeminiEmbeddings(model, embedding)
        case OpenAIModel():
            from airflow_provider_llmbeam.providers.openai.embeddings import OpenAIEmbeddings

            return OpenAIEmbeddings(model, embedding)
        case VertexEndpointModel():
            raise JobSpecError(
                "A model of type 'vertex_endpoint' generates texts only, and vectors were requested. Nothing was "
                "sent or billed. Use a model of type 'gemini' or 'openai'."
            )
        case EchoModel():
            from airflow_provider_llmbeam.providers.echo import EchoEmbeddings

            return EchoEmbeddings(model, embedding)
