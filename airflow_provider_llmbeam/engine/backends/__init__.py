"""One file per kind of model server; each loads its client only when it is opened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_llmbeam.engine.backends.base import Backend
from airflow_provider_llmbeam.spec.model import EchoModel, GeminiModel, Generation, Model, OpenAIModel


def open_backend(model: Model, generation: Generation, output_schema: Mapping[str, Any] | None) -> Backend:
    """Opens the client for a model. Call it where the client is used: none of them pickles.

    Raises:
        JobSpecError: A key or credentials are missing.
    """
    match model:
        case GeminiModel():
            from airflow_provider_llmbeam.engine.backends.gemini import GeminiBackend

            return GeminiBackend(model, generation, output_schema)
        case OpenAIModel():
            from airflow_provider_llmbeam.engine.backends.openai import OpenAIBackend

            return OpenAIBackend(model, generation, output_schema)
        case EchoModel():
            from airflow_provider_llmbeam.engine.backends.echo import EchoBackend, StaticEchoBackend

            if model.padded_tokens_per_second is not None:
                return StaticEchoBackend(model, model.padded_tokens_per_second)
            return EchoBackend(model)
