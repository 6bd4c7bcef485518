"""Whether an answer is one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jsonschema
from jsonschema.protocols import Validator

from airflow_provider_llmbeam.engine.backends.base import Reply
from airflow_provider_llmbeam.engine.retry import RequestError


class OutputParser:
    """Refuses empty answers, and those that `output_schema` does not allow.

    Args:
        output_schema: JSON Schema (draft 2020-12), or `None` for free text.
    """

    def __init__(self, output_schema: Mapping[str, Any] | None) -> None:
        self._validator: Validator | None = (
            jsonschema.Draft202012Validator(dict(output_schema)) if output_schema is not None else None
        )

    def parse(self, reply: Reply) -> Any:
        """Returns the JSON value of the answer, or `None` where no schema was asked for.

        Raises:
            RequestError: Of kind `invalid_output`; it carries the tokens that were billed.
        """
        if not reply.text.strip():
            raise self._invalid(reply, "the answer is empty")
        if self._validator is None:
            return None
        try:
            value = json.loads(reply.text, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise self._invalid(reply, f"the answer is not JSON ({error}): {reply.text[:500]}") from None
        if (wrong := next(self._validator.iter_errors(value), None)) is not None:
            raise self._invalid(reply, f"`output_schema` refuses it at {wrong.json_path}: {wrong.message}")
        return value

    @staticmethod
    def _invalid(reply: Reply, message: str) -> RequestError:
        cut = " (cut at `max_output_tokens`)" if reply.finish_reason == "max_tokens" else ""
        return RequestError(
            "invalid_output",
            f"{message}{cut}",
            http_status=200,
            input_tokens=reply.input_tokens,
            output_tokens=reply.output_tokens,
        )


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
