"""Clients of the providers' batch-inference APIs."""

from __future__ import annotations

import requests

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.providers.batch_client import BatchLimits, BatchProvider, OpenFile
from airflow_provider_llmbeam.providers.batch_http import BatchHttp
from airflow_provider_llmbeam.spec.model import GeminiModel, Model, OpenAIModel

__all__ = ["BatchLimits", "BatchProvider", "OpenFile", "open_provider"]


def open_provider(
    model: Model, *, output_uri: str, embeds: bool = False, session: requests.Session | None = None
) -> BatchProvider:
    """Opens the batch-inference API of a model.

    Args:
        model: The model.
        output_uri: Directory of the run on Cloud Storage, for the results of Vertex AI.
        embeds: Whether the requests ask for vectors, for which there is no client of Vertex AI.
        session: Session that sends the credentials and refuses redirects. By default one with the credentials of
            this process.

    Raises:
        JobSpecError: The model has no batch inference, or there are no credentials.
    """
    if not isinstance(model, GeminiModel | OpenAIModel):
        raise JobSpecError(
            f"Batch inference needs a model of type 'gemini' or 'openai'; got {model.type!r}. Nothing was sent or "
            "billed."
        )
    if session is None:
        from airflow_provider_llmbeam.providers.google_session import open_session

        session = open_session(model)
    if isinstance(model, OpenAIModel):
        from airflow_provider_llmbeam.providers.openai.batch import OpenAIBatches

        return OpenAIBatches(model, BatchHttp(session, "OpenAI"), embeds=embeds)
    if model.project:
        from airflow_provider_llmbeam.providers.vertex_ai.batch import VertexAIBatches

        return VertexAIBatches(model, output_uri, BatchHttp(session, "Vertex AI"))
    from airflow_provider_llmbeam.providers.gemini.batch import GeminiBatches

    return GeminiBatches(model, BatchHttp(session, "The Gemini Developer API"), embeds=embeds)
