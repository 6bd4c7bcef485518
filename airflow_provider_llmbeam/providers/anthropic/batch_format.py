"""Lines of batch inference of Claude: Message Batches of Anthropic, and batch prediction on Vertex AI."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_provider_llmbeam.engine.backend import Reply
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.providers.anthropic.client import (
    error_of,
    message_fields,
    messages,
    parameters,
    read_reply,
)
from airflow_provider_llmbeam.providers.batch_format import BatchFormat, ResultLine, object_of
from airflow_provider_llmbeam.providers.reported import UsageReader
from airflow_provider_llmbeam.spec.model import AnthropicModel, Embedding, Generation
from airflow_provider_llmbeam.transport.server_reply import body_error, mapping_of, str_of

_UNKNOWN = Prompt("")


def open_format(
    model: AnthropicModel,
    generation: Generation,
    output_schema: Mapping[str, Any] | None,
    embedding: Embedding | None,
) -> BatchFormat | None:
    """See `providers.batch_format`; there are no embeddings."""
    return None if embedding is not None else ClaudeFormat(model, generation, output_schema)


class ClaudeFormat:
    """Lines whose answers are messages.

    Those of Anthropic are `{"custom_id", "params"}` and `{"custom_id", "result": {"type", "message" | "error"}}`,
    those of Vertex AI `{"custom_id", "request"}` and `{"custom_id", "response", "status"}`, as in
    docs.cloud.google.com/gemini-enterprise-agent-platform/models/partner-models/claude/batch.
    """

    def __init__(
        self, model: AnthropicModel, generation: Generation, output_schema: Mapping[str, Any] | None
    ) -> None:
        self._field = "request" if model.project else "params"
        self._name = model.name
        self._usage = UsageReader(model.name)
        unstreamed = generation.model_copy(update={"stream": False})
        self._fields = {**message_fields(model), **parameters(unstreamed, output_schema)}

    def encode(self, name: str, prompt: Prompt) -> tuple[str, bytes]:
        """Returns the name, and `{"custom_id", "params" | "request"}`."""
        line = {"custom_id": name, self._field: {**self._fields, **messages(prompt)}}
        return name, json.dumps(line, separators=(",", ":")).encode() + b"\n"

    def decode(self, line: bytes) -> ResultLine:
        """Reads a line; one that was canceled or has expired was not asked, and is not billed."""
        found = object_of(line)
        key = found.get("custom_id")
        if not isinstance(key, str) or not key:
            raise ValueError("it has no `custom_id`")
        try:
            return ResultLine(key, self._reply(found, line))
        except RequestError as error:
            return ResultLine(key, error)

    def _reply(self, found: Mapping[str, Any], line: bytes) -> Reply:
        if self._field == "request":
            message, fault = mapping_of(found.get("response")), found.get("status")
            if fault and not message:
                http_status, text = body_error({"error": fault}) or (500, json.dumps(fault))
                raise error_of(http_status, {}, text)
            if message.get("type") == "error":
                raise error_of(500, {}, json.dumps(message))
            return read_reply(message, line, _UNKNOWN, self._name, self._usage)
        result = mapping_of(found.get("result"))
        kind = str_of(result.get("type"))
        if kind == "errored":
            raise error_of(500, {}, json.dumps(result.get("error")))
        if kind in ("canceled", "expired"):
            raise RequestError("server_error", f"the request was {kind}, and not processed", http_status=503)
        return read_reply(mapping_of(result.get("message")), line, _UNKNOWN, self._name, self._usage)
