"""Validation of answers."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import jsonschema
from jsonschema.protocols import Validator

from airflow_provider_llmbeam.engine.backends.base import Reply
from airflow_provider_llmbeam.engine.retry import RequestError


class OutputParser:
    """Rejects empty answers, and answers that are not valid against `output_schema`.

    Args:
        output_schema: JSON Schema (draft 2020-12), or `None` for free text.
    """

    def __init__(self, output_schema: Mapping[str, Any] | None) -> None:
        self._validator: Validator | None = (
            jsonschema.Draft202012Validator(dict(output_schema)) if output_schema is not None else None
        )

    def parse(self, reply: Reply) -> Any:
        """Returns the JSON value of the answer, or `None` without a schema.

        Raises:
            RequestError: The answer is invalid (kind `invalid_output`); the error has the billed tokens.
        """
        if not reply.text.strip():
            raise self._invalid(reply, "the answer is empty")
        if self._validator is None:
            return None
        try:
            value = json.loads(reply.text, parse_constant=_no_number, parse_float=_finite)
        except (ValueError, RecursionError) as error:
            raise self._invalid(reply, f"the answer is not JSON ({error}): {reply.text[:500]}") from None
        if (mismatch := next(self._validator.iter_errors(value), None)) is not None:
            raise self._invalid(
                reply, f"the answer does not match `output_schema` at {mismatch.json_path}: {mismatch.message}"
            )
        return value

    @staticmethod
    def _invalid(reply: Reply, message: str) -> RequestError:
        truncated = " (truncated at `max_output_tokens`)" if reply.finish_reason == "max_tokens" else ""
        return _invalid(reply, f"{message}{truncated}")


class VectorParser:
    """Rejects vectors with values that are not finite, or with a length that differs from the others.

    Args:
        dimensions: Required length; `None`: that of the first vector.
    """

    def __init__(self, dimensions: int | None) -> None:
        self._dimensions = dimensions

    def parse(self, reply: Reply) -> list[float]:
        """Returns the vector.

        Raises:
            RequestError: The vector is invalid (kind `invalid_output`); the error has the billed tokens.
        """
        vector = reply.vector
        if not vector:
            raise _invalid(reply, "the answer has no vector")
        if not _is_finite(vector):
            raise _invalid(reply, "the vector has values that are not finite 32-bit numbers")
        if self._dimensions is None:
            self._dimensions = len(vector)
        if len(vector) != self._dimensions:
            raise _invalid(reply, f"the vector has {len(vector)} dimensions, not {self._dimensions}")
        return list(vector)


def _is_finite(vector: Sequence[Any]) -> bool:
    """Whether all values are finite as 32-bit numbers, which models, Parquet and Milvus use."""
    if not {*map(type, vector)} <= {float, int}:
        return False
    try:
        return all(map(math.isfinite, array("f", vector)))
    except OverflowError:
        return False


def _invalid(reply: Reply, message: str) -> RequestError:
    return RequestError(
        "invalid_output",
        message,
        http_status=200,
        input_tokens=reply.input_tokens,
        output_tokens=reply.output_tokens,
    )


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_number(text)  # `1e400` would be written as Infinity


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
