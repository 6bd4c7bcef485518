"""Batch inference of OpenAI."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_provider_llmbeam.engine.backends.openai import chat_messages, error_of, model_parameters, read_reply
from airflow_provider_llmbeam.engine.backends.reported import UsageReader
from airflow_provider_llmbeam.engine.batch_formats.base import ResultLine, object_of
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.server_reply import mapping_of
from airflow_provider_llmbeam.spec.model import Generation, OpenAIModel

_UNKNOWN = Prompt("")


class OpenAIFormat:
    """Lines of OpenAI's Batch API, which returns the custom ID of each request."""

    def __init__(
        self, model: OpenAIModel, generation: Generation, output_schema: Mapping[str, Any] | None
    ) -> None:
        self._name = model.name
        self._usage = UsageReader(model.name)
        # A batch has no streams.
        unstreamed = generation.model_copy(update={"stream": False})
        self._parameters = model_parameters(model, unstreamed, output_schema)

    def encode(self, fingerprint: str, prompt: Prompt) -> tuple[str, bytes]:
        """Returns the fingerprint, and `{"custom_id", "method", "url", "body"}`."""
        body = {**self._parameters, "messages": chat_messages(prompt)}
        line = {"custom_id": fingerprint, "method": "POST", "url": "/v1/chat/completions", "body": body}
        return fingerprint, json.dumps(line, separators=(",", ":")).encode() + b"\n"

    def decode(self, line: bytes) -> ResultLine:
        """Reads `{"custom_id", "response": {"status_code", "body"}, "error"}`.

        Errors are in the file of results, too (artefactual#332), and their status may be 0
        (ellmer#830).
        """
        found = object_of(line)
        key = found.get("custom_id")
        if not isinstance(key, str) or not key:
            raise ValueError("it has no `custom_id`")
        if found.get("error"):
            return ResultLine(key, error_of(500, None, json.dumps({"error": found["error"]})))
        response = mapping_of(found.get("response"))
        status, body = response.get("status_code"), mapping_of(response.get("body"))
        if status != 200:
            http_status = status if isinstance(status, int) and 400 <= status <= 599 else 500
            return ResultLine(key, error_of(http_status, None, json.dumps(body)))
        try:
            return ResultLine(key, read_reply(body, line, _UNKNOWN, self._name, self._usage))
        except RequestError as error:
            return ResultLine(key, error)
