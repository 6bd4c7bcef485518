"""Embeddings of servers with the OpenAI API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_llmbeam.engine.backend import Reply
from airflow_provider_llmbeam.engine.plan import StaticBatching
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.providers.access import Access, open_access
from airflow_provider_llmbeam.providers.embeddings import (
    NO_VECTORS,
    EmbeddingBackend,
    share_tokens,
    vector_reply,
)
from airflow_provider_llmbeam.providers.http import HttpBackend, HttpClient, vector_bytes
from airflow_provider_llmbeam.providers.openai.client import error_of
from airflow_provider_llmbeam.providers.reported import UsageReader, invalid_response, json_object, name_of
from airflow_provider_llmbeam.spec.model import Embedding, OpenAIModel
from airflow_provider_llmbeam.transport.server_reply import mapping_of


class OpenAIEmbeddings(HttpBackend, EmbeddingBackend):
    """Client of an embedding model. The tokens of a request are distributed over its texts by their length."""

    #: `input` in https://platform.openai.com/docs/api-reference/embeddings/create. A server with a smaller limit
    #: answers 4xx, and the engine then sends halves.
    limits = StaticBatching(max_padded_tokens=300_000, max_instances=2048)

    def __init__(self, model: OpenAIModel, embedding: Embedding, access: Access | None = None) -> None:
        access = access or open_access(model)
        super().__init__(HttpClient(model.base_url, access, certificate=model.api.certificate))
        self._model = model
        self._dimensions = embedding.dimensions
        self._usage = UsageReader(model.name)
        self._parameters = embedding_parameters(model, embedding)

    async def complete_batch(self, prompts: Sequence[Prompt]) -> list[Reply]:
        """Sends one `embeddings` request."""
        request = {**self._parameters, "input": [prompt.text for prompt in prompts]}
        async with self._http.post(self._model.url_of("embeddings"), request) as response:
            if response.status != 200:
                text = await response.error_text()
                raise error_of(response.status, response.headers, text)
            content = await response.read(vector_bytes(len(prompts), self._dimensions))
            body = json_object(content, NO_VECTORS, error_of, response.headers)
            return _replies(body, content, prompts, self._model.name, self._usage)


open_embeddings = OpenAIEmbeddings


def embedding_parameters(model: OpenAIModel, embedding: Embedding) -> dict[str, Any]:
    """Returns the body of a request without its texts."""
    parameters: dict[str, Any] = {"model": model.name, "encoding_format": "float"}
    if embedding.dimensions is not None:
        parameters["dimensions"] = embedding.dimensions
    return parameters


def read_vectors(body: Mapping[str, Any], content: bytes, count: int) -> list[Any]:
    """Returns the vectors of a response in the order of its texts.

    Args:
        body: Body of the response.
        content: The same, for the error.
        count: Number of texts.

    Raises:
        RequestError: The response has not one vector per text.
    """
    try:
        found = list(body["data"])
        # Each vector has the index of its text; the order is not guaranteed.
        vectors = {item.get("index", place): item.get("embedding") for place, item in enumerate(found)}
    except (LookupError, TypeError, AttributeError):
        raise invalid_response(content, NO_VECTORS) from None
    if len(found) != count or vectors.keys() != set(range(count)):
        raise invalid_response(content, NO_VECTORS)
    return [vectors[place] for place in range(count)]


def _replies(
    body: Mapping[str, Any], content: bytes, prompts: Sequence[Prompt], model: str, usage: UsageReader
) -> list[Reply]:
    vectors = read_vectors(body, content, len(prompts))
    total = usage.tokens(mapping_of(body.get("usage")).get("prompt_tokens"))
    name = name_of(body.get("model"), model)
    return [
        vector_reply(vector, input_tokens=count, model=name, estimated_tokens=0 if total else count)
        for vector, count in zip(vectors, share_tokens(total, prompts), strict=True)
    ]
