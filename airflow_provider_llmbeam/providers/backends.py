"""Opens the clients of model servers; each imports its libraries only when it is opened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_llmbeam.engine.backend import Backend
from airflow_provider_llmbeam.engine.prefix import CachedHead
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.providers.registry import part_of
from airflow_provider_llmbeam.spec.model import Embedding, GeminiModel, Generation, Model
from airflow_provider_llmbeam.spec.model.tier import AskedTier


def open_backend(
    model: Model,
    generation: Generation,
    output_schema: Mapping[str, Any] | None,
    embedding: Embedding | None = None,
    cached_head: CachedHead | None = None,
    *,
    asked_tier: AskedTier = "standard",
    as_batch: bool = False,
) -> Backend:
    """Opens the client of a model, in the process that uses it, as clients cannot be pickled.

    Args:
        model: The model.
        generation: Parameters of the texts.
        output_schema: JSON Schema of the texts.
        embedding: Parameters of the vectors, to request vectors instead of texts.
        cached_head: What the provider has stored of the prompts of Gemini.
        asked_tier: Tier that requests of Gemini and OpenAI ask for.
        as_batch: Whether requests of Gemini have the configuration of batch inference, which others do not have.

    Raises:
        JobSpecError: A key or credentials are missing.
    """
    backend: Backend
    if embedding is None:
        options: dict[str, Any] = {} if cached_head is None else {"cached": cached_head}
        if as_batch and isinstance(model, GeminiModel):
            options["as_batch"] = True
        client = part_of(model, "client")
        backend = client.open_backend(model, generation, output_schema, asked_tier=asked_tier, **options)
        return backend
    if (embeddings := part_of(model, "embeddings")) is None:
        raise JobSpecError(
            f"A model of type {model.type!r} generates texts only, and vectors were requested. "
            "Use a model of type 'gemini' or 'openai'."
        )
    backend = embeddings.open_embeddings(model, embedding)
    return backend
