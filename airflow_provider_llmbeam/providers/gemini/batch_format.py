"""Batch inference of Gemini: on Vertex AI, and on the Developer API."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from airflow_provider_llmbeam.engine.backend import Reply
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.providers.batch_format import BatchFormat, ResultLine, object_of
from airflow_provider_llmbeam.providers.embeddings import NO_VECTORS, vector_reply
from airflow_provider_llmbeam.providers.gemini.client import (
    constant_fields,
    error_of,
    generation_config,
    read_reply,
    request_body,
)
from airflow_provider_llmbeam.providers.gemini.embeddings import embed_request, embedding_config
from airflow_provider_llmbeam.providers.reported import UsageReader, invalid_response
from airflow_provider_llmbeam.spec.model import Embedding, GeminiModel, Generation
from airflow_provider_llmbeam.transport.server_reply import body_error, list_of, mapping_of, str_of

#: The text of the prompt is not in the result, and only an answer without usage would need it.
_UNKNOWN = Prompt("")


def open_format(
    model: GeminiModel,
    generation: Generation,
    output_schema: Mapping[str, Any] | None,
    embedding: Embedding | None,
) -> BatchFormat | None:
    """See `providers.batch_format`; `None` for embeddings on Vertex AI."""
    if embedding is None:
        return (VertexFormat if model.project else DeveloperFormat)(model, generation, output_schema)
    return None if model.project else DeveloperEmbeddingFormat(model, embedding)


class _GeminiFormat:
    def __init__(
        self, model: GeminiModel, generation: Generation, output_schema: Mapping[str, Any] | None
    ) -> None:
        self._model = model
        self._usage = UsageReader(model.name)
        self._config = generation_config(generation, output_schema, as_batch=True)
        self._fields = constant_fields(generation)

    def _request(self, prompt: Prompt) -> dict[str, Any]:
        return {**request_body(prompt, self._config), **self._fields}

    def _result(self, response: Any) -> Reply | RequestError:
        if (fault := body_error(mapping_of(response))) is not None:
            return error_of(fault[0], {}, fault[1])
        try:
            return read_reply(mapping_of(response), _UNKNOWN, self._model.name, self._usage)
        except RequestError as error:
            return error


class _DeveloperLines(ABC):
    """Lines of the Developer API, which returns the key of each request."""

    def encode(self, name: str, prompt: Prompt) -> tuple[str, bytes]:
        """Returns the name, and `{"key", "request"}`."""
        return name, _line({"key": name, "request": self._request(prompt)})

    def decode(self, line: bytes) -> ResultLine:
        """Reads `{"key", "response" | "error"}`; inline results have their key in `metadata`."""
        found = object_of(line)
        key = found.get("key") or mapping_of(found.get("metadata")).get("key")
        if not isinstance(key, str) or not key:
            raise ValueError("it has no `key`")
        if found.get("error"):
            return ResultLine(key, _row_error(found["error"]))
        return ResultLine(key, self._result(found.get("response")))

    @abstractmethod
    def _request(self, prompt: Prompt) -> dict[str, Any]:
        """Returns the request of a prompt."""

    @abstractmethod
    def _result(self, response: Any) -> Reply | RequestError:
        """Reads a response."""


class DeveloperFormat(_GeminiFormat, _DeveloperLines):
    """Lines of the Developer API whose answers are texts."""


class DeveloperEmbeddingFormat(_DeveloperLines):
    """Lines of the Developer API whose answers are vectors.

    Fields as in developers.googleblog.com/gemini-batch-api-now-supports-embeddings-and-openai-compatibility, and
    in google-genai 2.34 (`types.SingleEmbedContentResponse`).
    """

    def __init__(self, model: GeminiModel, embedding: Embedding) -> None:
        self._name = model.name
        self._usage = UsageReader(model.name)
        self._config = embedding_config(embedding)

    def _request(self, prompt: Prompt) -> dict[str, Any]:
        return embed_request(prompt.text, self._config)

    def _result(self, response: Any) -> Reply | RequestError:
        found = mapping_of(response)
        vector = mapping_of(found.get("embedding")).get("values")
        if not vector:
            return invalid_response(json.dumps(found).encode(), NO_VECTORS)
        reported = mapping_of(found.get("usageMetadata")).get("promptTokenCount") or found.get("tokenCount")
        if isinstance(reported, str) and reported.isdecimal():  # a 64-bit number in the JSON of protobuf
            reported = int(reported[:20])
        return vector_reply(vector, input_tokens=self._usage.tokens(reported) or 0, model=self._name)


class VertexFormat(_GeminiFormat):
    """Lines of Vertex AI, which returns no key but the request: it is found by what differs between requests."""

    def encode(self, name: str, prompt: Prompt) -> tuple[str, bytes]:
        """Returns a digest of the contents and the system instruction, and `{"request"}`."""
        request = self._request(prompt)
        return _digest(request), _line({"request": request})

    def decode(self, line: bytes) -> ResultLine:
        """Reads `{"request", "response", "status"}`; `status` is empty for an answered request."""
        found = object_of(line)
        request = found.get("request")
        if not isinstance(request, Mapping):
            raise ValueError("it has no `request`")
        key, status = _digest(request), found.get("status")
        if status and not found.get("response"):
            return ResultLine(key, _row_error(status))
        return ResultLine(key, self._result(found.get("response")))


def _row_error(error: Any) -> RequestError:
    """Returns the error of one row; its code is that of HTTP, or one of gRPC, which is below 100."""
    http_status, text = body_error({"error": error}) or (500, json.dumps(error))
    return error_of(http_status, {}, text)


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _digest(request: Mapping[str, Any]) -> str:
    """Returns a digest of the parts of a request that decide which row it is of.

    The configuration is left out: it is the same in all requests of a job, and an echo may write its numbers in
    another form. An echo has `null` for the fields that a part of the request does not have: the example of a
    result in docs.cloud.google.com/vertex-ai/generative-ai/docs/multimodal/batch-prediction-from-cloud-storage.
    """
    contents = [_parts(content) for content in list_of(request.get("contents"))]
    found = [contents, _parts(request.get("systemInstruction") or request.get("system_instruction"))]
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def _parts(content: Any) -> list[Any]:
    return [_part(mapping_of(part)) for part in list_of(mapping_of(content).get("parts"))]


def _part(part: Mapping[str, Any]) -> Any:
    if part.get("text") is not None:
        return str_of(part["text"])
    for name, place in (("fileData", "fileUri"), ("inlineData", "data")):
        found = mapping_of(part.get(name))
        if found.get(place) is not None:
            return [str_of(found[place]), str_of(found.get("mimeType"))]
    return sorted(name for name, value in part.items() if value is not None)
