"""Batch inference of OpenAI."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from airflow_provider_llmbeam.engine.backend import Reply
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.providers.batch_format import BatchFormat, ResultLine, object_of
from airflow_provider_llmbeam.providers.embeddings import vector_reply
from airflow_provider_llmbeam.providers.openai.client import chat_messages, error_of, model_parameters, read_reply
from airflow_provider_llmbeam.providers.openai.embeddings import embedding_parameters, read_vectors
from airflow_provider_llmbeam.providers.reported import UsageReader, name_of
from airflow_provider_llmbeam.spec.model import Embedding, Generation, OpenAIModel
from airflow_provider_llmbeam.transport.server_reply import body_error, mapping_of

_UNKNOWN = Prompt("")


def open_format(
    model: OpenAIModel,
    generation: Generation,
    output_schema: Mapping[str, Any] | None,
    embedding: Embedding | None,
) -> BatchFormat:
    """See `providers.batch_format`."""
    if embedding is None:
        return OpenAIFormat(model, generation, output_schema)
    return OpenAIEmbeddingFormat(model, embedding)


class _Lines(ABC):
    """Lines of OpenAI's Batch API, which returns the custom ID of each request."""

    _URL: ClassVar[str]

    def __init__(self, model: OpenAIModel, parameters: Mapping[str, Any]) -> None:
        self._name = model.name
        self._usage = UsageReader(model.name)
        self._parameters = parameters

    def encode(self, name: str, prompt: Prompt) -> tuple[str, bytes]:
        """Returns the name, and `{"custom_id", "method", "url", "body"}`."""
        body = {**self._parameters, **self._input(prompt)}
        line = {"custom_id": name, "method": "POST", "url": self._URL, "body": body}
        return name, json.dumps(line, separators=(",", ":")).encode() + b"\n"

    def decode(self, line: bytes) -> ResultLine:
        """Reads `{"custom_id", "response": {"status_code", "body"}, "error"}`.

        Errors are in the file of results, too (artefactual#332), and their status may be 0
        (ellmer#830).
        """
        found = object_of(line)
        key = found.get("custom_id")
        if not isinstance(key, str) or not key:
            raise ValueError("it has no `custom_id`")
        response = mapping_of(found.get("response"))
        status, body = response.get("status_code"), mapping_of(response.get("body"))
        fault = body_error(found) or body_error(body)
        if fault is not None or status != 200:
            http_status, text = fault or (500, json.dumps(body))
            if isinstance(status, int) and 400 <= status <= 599:
                http_status = status
            return ResultLine(key, error_of(http_status, {}, text))
        try:
            return ResultLine(key, self._reply(body, line))
        except RequestError as error:
            return ResultLine(key, error)

    @abstractmethod
    def _input(self, prompt: Prompt) -> Mapping[str, Any]:
        """Returns what differs between the bodies of requests."""

    @abstractmethod
    def _reply(self, body: Mapping[str, Any], line: bytes) -> Reply:
        """Reads the body of an answer."""


class OpenAIFormat(_Lines):
    """Lines whose answers are texts."""

    _URL = "/v1/chat/completions"

    def __init__(
        self, model: OpenAIModel, generation: Generation, output_schema: Mapping[str, Any] | None
    ) -> None:
        # A batch has no streams.
        unstreamed = generation.model_copy(update={"stream": False})
        super().__init__(model, model_parameters(model, unstreamed, output_schema))

    def _input(self, prompt: Prompt) -> Mapping[str, Any]:
        return {"messages": chat_messages(prompt)}

    def _reply(self, body: Mapping[str, Any], line: bytes) -> Reply:
        return read_reply(body, line, _UNKNOWN, self._name, self._usage)


class OpenAIEmbeddingFormat(_Lines):
    """Lines whose answers are vectors, of one text each: a vector that is missing takes no other with it."""

    _URL = "/v1/embeddings"

    def __init__(self, model: OpenAIModel, embedding: Embedding) -> None:
        super().__init__(model, embedding_parameters(model, embedding))

    def _input(self, prompt: Prompt) -> Mapping[str, Any]:
        return {"input": prompt.text}

    def _reply(self, body: Mapping[str, Any], line: bytes) -> Reply:
        (vector,) = read_vectors(body, line, 1)
        tokens = self._usage.tokens(mapping_of(body.get("usage")).get("prompt_tokens"))
        return vector_reply(vector, input_tokens=tokens or 0, model=name_of(body.get("model"), self._name))
