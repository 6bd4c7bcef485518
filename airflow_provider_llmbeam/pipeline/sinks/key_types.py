"""Types of the columns of an output row, for a sink that has columns."""

from __future__ import annotations

from typing import Any, Literal

from airflow_provider_llmbeam.pipeline.elements import Row
from airflow_provider_llmbeam.spec.source import OUTPUT_COLUMNS

KeyType = Literal["boolean", "integer", "number", "text"]

#: Of the columns beside the key.
OUTPUT_TYPES: dict[str, KeyType] = {
    **dict.fromkeys(OUTPUT_COLUMNS, "text"),
    "input_tokens": "integer",
    "output_tokens": "integer",
    "attempts": "integer",
    "latency_seconds": "number",
}


class KeyTypes:
    """Looks at every record once. A column is boolean, integer or number where every value is, else text.

    Args:
        key: The columns.
    """

    def __init__(self, key: tuple[str, ...]) -> None:
        self._seen: dict[str, set[type]] = {column: set() for column in key}

    def see(self, record: Row) -> None:
        """Takes a record into account."""
        for column, kinds in self._seen.items():
            kinds.add(_kind(record[column]))

    def found(self) -> dict[str, KeyType]:
        """Returns the type of each column; without a record it is text."""
        return {column: _key_type(kinds) for column, kinds in self._seen.items()}


class _Long(int):
    """Of 54 to 64 bits."""


def _kind(value: Any) -> type:
    # Beyond 2**53 a float loses it, beyond 2**63 a column does: such numbers are text.
    if type(value) is not int or abs(value) <= 2**53:
        return type(value)
    return _Long if -(2**63) <= value < 2**63 else str


def _key_type(kinds: set[type]) -> KeyType:
    if kinds == {bool}:
        return "boolean"
    if kinds and kinds <= {int, _Long}:
        return "integer"
    if kinds and kinds <= {int, float}:
        return "number"
    return "text"
