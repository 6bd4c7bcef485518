"""Embeddings of Google models on the Gemini Developer API and on Vertex AI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

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
from airflow_provider_llmbeam.providers.gemini.client import error_of
from airflow_provider_llmbeam.providers.http import HttpBackend, HttpClient, vector_bytes
from airflow_provider_llmbeam.providers.reported import UsageReader, invalid_response, json_object
from airflow_provider_llmbeam.spec.model import Embedding, GeminiModel
from airflow_provider_llmbeam.transport.server_reply import mapping_of

#: Maximum input of the embedding models of Google, in tokens.
_TEXT_TOKENS = 8192


class GeminiEmbeddings(HttpBackend, EmbeddingBackend):
    """Client of an embedding model of Google.

    Args:
        model: The model.
        embedding: Parameters of the vectors.
        access: Authentication of the requests; `None`: that of this process.

    Raises:
        JobSpecError: No `project` and no `GOOGLE_API_KEY`, or `project` and no Google credentials.
    """

    def __init__(self, model: GeminiModel, embedding: Embedding, access: Access | None = None) -> None:
        self._model = model
        self._method = _method(model, embedding)
        self._url = f"{model.address}:{self._method.name}"
        super().__init__(HttpClient(self._url, access or open_access(model)))
        self.limits = self._method.limits
        self._dimensions = embedding.dimensions
        self._usage = UsageReader(model.name, is_documented=self._method.reports_tokens)

    async def complete_batch(self, prompts: Sequence[Prompt]) -> list[Reply]:
        """Sends one request."""
        request = self._method.body([prompt.text for prompt in prompts])
        async with self._http.post(self._url, request) as response:
            if response.status != 200:
                text = await response.error_text()
                raise error_of(response.status, response.headers, text)
            content = await response.read(vector_bytes(len(prompts), self._dimensions))
            body = json_object(content, NO_VECTORS, error_of, response.headers)
            return _replies(body, content, prompts, self._method, self._model.name, self._usage)


open_embeddings = GeminiEmbeddings


@dataclass(frozen=True, slots=True)
class _Vector:
    values: Any
    tokens: Any = None
    is_truncated: bool = False


class _Method(Protocol):
    """One of the three methods of Google that return vectors."""

    @property
    def name(self) -> str: ...

    @property
    def limits(self) -> StaticBatching: ...

    @property
    def reports_tokens(self) -> bool: ...

    def body(self, texts: Sequence[str]) -> dict[str, Any]:
        """Returns the body of a request."""

    def vectors(self, body: Mapping[str, Any]) -> list[_Vector]:
        """Reads the vectors of a response; raises any error for a body of another shape."""


def _method(model: GeminiModel, embedding: Embedding) -> _Method:
    """Selects the method as google-genai 2.34 does (`_transformers.t_is_vertex_embed_content_model`)."""
    if not model.project:
        return _BatchEmbedContents(model, embedding)
    if "maas" in model.name or ("gemini" in model.name and model.name != "gemini-embedding-001"):
        return _EmbedContent(embedding)
    return _Predict(model, embedding)


class _BatchEmbedContents:
    """The Developer API.

    It reports no tokens: they are estimates. It counts each text as a request against the requests per minute
    (observed in https://github.com/garrytan/gbrain/pull/1922), which the governor learns from the 429s.
    """

    name = "batchEmbedContents"
    reports_tokens = False
    #: "at most 100 requests can be in one batch": https://github.com/langchain-ai/langchainjs/issues/4491
    limits = StaticBatching(max_padded_tokens=100 * _TEXT_TOKENS, max_instances=100)

    def __init__(self, model: GeminiModel, embedding: Embedding) -> None:
        self._model = model.address.partition("/v1beta/")[2]
        self._config = embedding_config(embedding)

    def body(self, texts: Sequence[str]) -> dict[str, Any]:
        return {"requests": [{"model": self._model, **embed_request(text, self._config)} for text in texts]}

    def vectors(self, body: Mapping[str, Any]) -> list[_Vector]:
        return [_Vector(item.get("values")) for item in body["embeddings"]]


class _Predict:
    """Vertex AI, for `text-embedding-005`, `text-multilingual-embedding-002`, `gemini-embedding-001`."""

    name = "predict"
    reports_tokens = True

    def __init__(self, model: GeminiModel, embedding: Embedding) -> None:
        # 250 texts and 20,000 tokens; gemini-embedding-001 takes one text:
        # https://cloud.google.com/vertex-ai/generative-ai/docs/embeddings/get-text-embeddings
        takes_one = model.name.endswith("gemini-embedding-001")
        self.limits = StaticBatching(max_padded_tokens=20_000, max_instances=1 if takes_one else 250)
        self._instance = {} if embedding.task_type is None else {"task_type": embedding.task_type}
        dimensions = embedding.dimensions
        self._parameters = {} if dimensions is None else {"outputDimensionality": dimensions}

    def body(self, texts: Sequence[str]) -> dict[str, Any]:
        instances = [{**self._instance, "content": text} for text in texts]
        return {"instances": instances, "parameters": self._parameters}

    def vectors(self, body: Mapping[str, Any]) -> list[_Vector]:
        found = []
        for prediction in body["predictions"]:
            embeddings = prediction["embeddings"]
            statistics = mapping_of(embeddings.get("statistics"))
            tokens, is_truncated = statistics.get("token_count"), bool(statistics.get("truncated"))
            found.append(_Vector(embeddings.get("values"), tokens, is_truncated))
        return found


class _EmbedContent:
    """Vertex AI, for the models after `gemini-embedding-001`: one text per request."""

    name = "embedContent"
    reports_tokens = True
    limits = StaticBatching(max_padded_tokens=_TEXT_TOKENS, max_instances=1)

    def __init__(self, embedding: Embedding) -> None:
        self._config = embedding_config(embedding)

    def body(self, texts: Sequence[str]) -> dict[str, Any]:
        (text,) = texts
        return {"content": {"parts": [{"text": text}]}, "embedContentConfig": self._config}

    def vectors(self, body: Mapping[str, Any]) -> list[_Vector]:
        tokens = mapping_of(body.get("usageMetadata")).get("promptTokenCount")
        values = body["embedding"].get("values")
        return [_Vector(values, tokens, bool(body.get("truncated")))]


def embedding_config(embedding: Embedding) -> dict[str, Any]:
    """Returns the fields of an `EmbedContentRequest` that say which vector is wanted."""
    given = {"taskType": embedding.task_type, "outputDimensionality": embedding.dimensions}
    return {name: value for name, value in given.items() if value is not None}


def embed_request(text: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an `EmbedContentRequest` of the Developer API without its model."""
    return {**config, "content": {"parts": [{"text": text}]}}


def _replies(
    body: Mapping[str, Any],
    content: bytes,
    prompts: Sequence[Prompt],
    method: _Method,
    model: str,
    usage: UsageReader,
) -> list[Reply]:
    try:
        vectors = method.vectors(body)
    except (LookupError, TypeError, AttributeError):
        raise invalid_response(content, NO_VECTORS) from None
    if len(vectors) != len(prompts):
        raise invalid_response(content, NO_VECTORS)
    counts = map(usage.count, (vector.tokens for vector in vectors), share_tokens(None, prompts))
    return [
        vector_reply(
            vector.values,
            input_tokens=count,
            estimated_tokens=estimated,
            model=model,
            is_truncated=vector.is_truncated,
        )
        for vector, (count, estimated) in zip(vectors, counts, strict=True)
    ]
