"""Types of the columns of an output row, for a sink that has columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from airflow_provider_llmbeam.pipeline.elements import Row
from airflow_provider_llmbeam.pipeline.staged_bytes import bytes_of
from airflow_provider_llmbeam.spec.plain_values import INFINITE
from airflow_provider_llmbeam.spec.sink import OUTPUT_COLUMNS

KeyType = Literal["boolean", "bytes", "integer", "number", "text"]

#: Types of the columns besides those of the source; a row has the last ones only with what adds them.
OUTPUT_TYPES: dict[str, KeyType] = {
    **dict.fromkeys(OUTPUT_COLUMNS, "text"),
    "llmbeam_input_tokens": "integer",
    "llmbeam_output_tokens": "integer",
    "llmbeam_attempts": "integer",
    "llmbeam_latency_seconds": "number",
    "llmbeam_citations": "text",  # as JSON
    "llmbeam_mean_logprob": "number",
    "llmbeam_reasoning": "text",
    "llmbeam_moderation_input": "text",
    "llmbeam_moderation_output": "text",
    "llmbeam_answered_by": "text",
}


class KeyTypes:
    """Derives the types of columns of the source: boolean, integer or number if all but nulls are, else text.

    Args:
        columns: The columns: the key, which is never null, and those that are passed through.

    Attributes:
        kinds: The kinds of values found in each column.
    """

    def __init__(self, columns: Iterable[str]) -> None:
        self.kinds: dict[str, set[str]] = {column: set() for column in columns}

    def add(self, record: Row) -> None:
        """Adds a record."""
        for column, kinds in self.kinds.items():
            if (value := record[column]) is not None:
                kinds.add(_kind(value))

    def add_kinds(self, found: Mapping[str, Iterable[str]]) -> None:
        """Adds the kinds that were found in other records."""
        for column, kinds in self.kinds.items():
            kinds.update(found[column])

    def types(self) -> dict[str, KeyType]:
        """Returns the type of each column; text without values."""
        return {column: _key_type(kinds) for column, kinds in self.kinds.items()}


#: An integer of 54 to 64 bits.
_LONG = "long"


def _kind(value: Any) -> str:
    # A float is exact up to 2**53, a column up to 2**63: larger integers are text.
    if value in INFINITE:
        return "float"
    if bytes_of(value) is not None:
        return "bytes"
    if type(value) is not int or abs(value) <= 2**53:
        return type(value).__name__
    return _LONG if -(2**63) <= value < 2**63 else "str"


def _key_type(kinds: set[str]) -> KeyType:
    if kinds == {"bool"}:
        return "boolean"
    if kinds == {"bytes"}:
        return "bytes"
    if kinds and kinds <= {"int", _LONG}:
        return "integer"
    if kinds and kinds <= {"int", "float"}:
        return "number"
    return "text"
