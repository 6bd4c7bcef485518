"""Whether an answer is one."""

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
        return _invalid(reply, f"{message}{cut}")


class VectorParser:
    """Refuses vectors that hold no finite numbers, or not as many as the others.

    Args:
        dimensions: How many there have to be; `None`: as many as in the first vector.
    """

    def __init__(self, dimensions: int | None) -> None:
        self._dimensions = dimensions

    def parse(self, reply: Reply) -> list[float]:
        """Returns the vector.

        Raises:
            RequestError: Of kind `invalid_output`; it carries the tokens that were billed.
        """
        vector = reply.vector
        if not vector:
            raise _invalid(reply, "the answer has no vector")
        if not _is_finite(vector):
            raise _invalid(reply, "the vector holds something else than finite 32-bit numbers")
        if self._dimensions is None:
            self._dimensions = len(vector)
        if len(vector) != self._dimensions:
            raise _invalid(reply, f"the vector has {len(vector)} dimensions, not {self._dimensions}")
        return list(vector)


def _is_finite(vector: Sequence[Any]) -> bool:
    """Models compute in 32 bits, and Parquet and Milvus keep as many: what is infinite there is no answer."""
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


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
