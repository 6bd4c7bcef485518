"""The model that costs nothing."""

from __future__ import annotations

import asyncio

from airflow_provider_llmbeam.engine.backends.base import Reply
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.tokens import estimate_tokens
from airflow_provider_llmbeam.spec.model import EchoModel


class EchoBackend:
    """Answers with the prompt."""

    def __init__(self, model: EchoModel) -> None:
        self._model = model

    async def complete(self, prompt: Prompt) -> Reply:
        """Returns the prompt's own text."""
        if self._model.latency_seconds:
            await asyncio.sleep(self._model.latency_seconds)
        tokens = estimate_tokens(prompt.text)
        return Reply(
            text=prompt.text,
            finish_reason="stop",
            input_tokens=tokens,
            output_tokens=tokens,
            model=self._model.name,
        )

    async def aclose(self) -> None:
        """Has nothing to close."""
