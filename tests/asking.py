"""Asks a model by its client, without an engine."""

from __future__ import annotations

from airflow_provider_llmbeam.engine.backend import Backend, Reply
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError


async def ask_each(backend: Backend, *prompts: Prompt) -> list[Reply | RequestError]:
    """Sends each prompt once, through one client, and closes it; returns the reply or the error of each."""
    found: list[Reply | RequestError] = []
    for prompt in prompts:
        try:
            found.append(await backend.complete(prompt))
        except RequestError as error:
            found.append(error)
    await backend.aclose()
    return found
