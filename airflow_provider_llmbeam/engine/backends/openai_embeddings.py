"""Embeddings of any server that speaks the OpenAI API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_llmbeam.engine.backends.base import Reply
from airflow_provider_llmbeam.engine.backends.embeddings import (
    EmbeddingBackend,
    no_embeddings,
    read_json,
    shared_out,
    vector_reply,
)
from airflow_provider_llmbeam.engine.backends.openai import error_of, open_client
from airflow_provider_llmbeam.engine.plan import StaticBatching
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.spec.model import Embedding, OpenAIModel


class OpenAIEmbeddings(EmbeddingBackend):
    """One aiohttp session. The tokens of a request are shared out over its texts by their length."""

    #: `input` in https://platform.openai.com/docs/api-reference/embeddings/create. A server with a smaller limit
    #: answers 4xx, and the engine then asks in halves.
    limits = StaticBatching(max_padded_tokens=300_000, max_instances=2048)

    def __init__(self, model: OpenAIModel, embedding: Embedding) -> None:
        self._model = model
        self._parameters: dict[str, Any] = {"model": model.name, "encoding_format": "float"}
        if embedding.dimensions is not None:
            self._parameters["dimensions"] = embedding.dimensions
        self._http = open_client(model)

    async def complete_batch(self, prompts: Sequence[Prompt]) -> list[Reply]:
        """Sends one `embeddings` request."""
        body = {**self._parameters, "input": [prompt.text for prompt in prompts]}
        async with self._http.post(f"{self._model.base_url}/embeddings", body) as response:
            content = await response.read()
        if response.status != 200:
            text = content.decode("utf-8", "replace")
            raise error_of(response.status, response.headers.get("Retry-After"), text)
        return _replies(content, prompts, self._model.name)

    async def aclose(self) -> None:
        """Closes the session."""
        await self._http.aclose()


def _replies(content: bytes, prompts: Sequence[Prompt], model: str) -> list[Reply]:
    body = read_json(content)
    usage = body.get("usage")
    try:
        found = list(body["data"])
        # Each vector says which text it belongs to; the order is not promised.
        vectors = {item.get("index", place): item.get("embedding") for place, item in enumerate(found)}
    except (LookupError, TypeError, AttributeError):
        raise no_embeddings(content) from None
    if len(found) != len(prompts) or vectors.keys() != set(range(len(prompts))):
        raise no_embeddings(content)
    total = usage.get("prompt_tokens") if isinstance(usage, Mapping) else None
    tokens = shared_out(total if isinstance(total, int) else None, prompts)
    name = body.get("model")
    return [
        vector_reply(vectors[place], input_tokens=count, model=name if isinstance(name, str) and name else model)
        for place, count in enumerate(tokens)
    ]
