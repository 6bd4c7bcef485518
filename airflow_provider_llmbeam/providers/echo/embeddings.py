"""Vectors of the echo model."""

from __future__ import annotations

import asyncio
import hashlib
import struct
from collections.abc import Sequence

from airflow_provider_llmbeam.engine.backend import Reply
from airflow_provider_llmbeam.engine.plan import StaticBatching
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.tokens import estimate_tokens
from airflow_provider_llmbeam.providers.access import Access
from airflow_provider_llmbeam.providers.embeddings import EmbeddingBackend, vector_reply
from airflow_provider_llmbeam.spec.model import EchoModel, Embedding


class EchoEmbeddings(EmbeddingBackend):
    """Returns vectors derived from a hash of the text, with values between -1 and 1."""

    limits = StaticBatching(max_padded_tokens=300_000, max_instances=2048)
    #: Length of a vector, if the spec does not set it.
    DIMENSIONS = 8

    def __init__(self, model: EchoModel, embedding: Embedding, access: Access | None = None) -> None:
        self._model = model
        self._dimensions = embedding.dimensions or self.DIMENSIONS
        self._task_type = embedding.task_type or ""

    async def complete_batch(self, prompts: Sequence[Prompt]) -> list[Reply]:
        """Returns a vector per text."""
        if self._model.latency_seconds:
            await asyncio.sleep(self._model.latency_seconds)
        return [
            vector_reply(
                self._vector(prompt.text), input_tokens=estimate_tokens(prompt.text), model=self._model.name
            )
            for prompt in prompts
        ]

    async def aclose(self) -> None:
        """Does nothing: there is no connection."""

    def _vector(self, text: str) -> list[float]:
        hashed = hashlib.shake_256(f"{self._task_type}\n{text}".encode("utf-8", "surrogatepass"))
        drawn = struct.unpack(f"<{self._dimensions}h", hashed.digest(2 * self._dimensions))
        return [number / 2**15 for number in drawn]


open_embeddings = EchoEmbeddings
