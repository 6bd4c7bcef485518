"""The echo model, which returns its input."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_llmbeam.engine.backend import Backend, Reply
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.token_counts import Tokens
from airflow_provider_llmbeam.engine.tokens import estimate_tokens
from airflow_provider_llmbeam.spec.model import EchoModel, Generation
from airflow_provider_llmbeam.spec.model.tier import AskedTier


def open_backend(
    model: EchoModel,
    generation: Generation,
    output_schema: Mapping[str, Any] | None,
    *,
    asked_tier: AskedTier = "standard",
) -> Backend:
    """See `providers.backends`; only the prompts matter."""
    if model.padded_tokens_per_second is not None:
        return StaticEchoBackend(model, model.padded_tokens_per_second)
    return EchoBackend(model)


class EchoBackend:
    """Returns the prompt as the answer."""

    def __init__(self, model: EchoModel) -> None:
        self._model = model

    async def complete(self, prompt: Prompt) -> Reply:
        """Returns the text of the prompt."""
        if self._model.latency_seconds:
            await asyncio.sleep(self._model.latency_seconds)
        return self._reply(prompt)

    async def aclose(self) -> None:
        """Does nothing: there is no connection."""

    def _reply(self, prompt: Prompt) -> Reply:
        tokens = estimate_tokens(prompt.text)
        return Reply(
            text=prompt.text,
            finish_reason="stop",
            tokens=Tokens(tokens, tokens),
            model=self._model.name,
        )


class StaticEchoBackend(EchoBackend):
    """Answers one request after the other, at a given speed of padded tokens."""

    def __init__(self, model: EchoModel, padded_tokens_per_second: float) -> None:
        super().__init__(model)
        self._padded_tokens_per_second = padded_tokens_per_second
        self._accelerator = asyncio.Lock()

    async def complete_batch(self, prompts: Sequence[Prompt]) -> list[Reply]:
        """Returns the texts of the prompts."""
        replies = [self._reply(prompt) for prompt in prompts]
        padded_tokens = len(replies) * max(reply.tokens.input for reply in replies)
        async with self._accelerator:
            await asyncio.sleep(self._model.latency_seconds + padded_tokens / self._padded_tokens_per_second)
        return replies
