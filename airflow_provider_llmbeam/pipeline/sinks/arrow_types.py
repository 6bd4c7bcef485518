"""Arrow types of answers with a schema, and values of these types."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from airflow_provider_llmbeam.spec.plain_values import INFINITE
from airflow_provider_llmbeam.spec.prompt.answer_type import AnswerType

_PLAIN = {
    "text": pa.string(),
    "any": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
}


def arrow_type(found: AnswerType, *, for_bigquery: bool = False) -> pa.DataType:
    """Returns the type of a column; text, which holds JSON, where the schema gives no type.

    Args:
        found: Type of the values.
        for_bigquery: Whether lists of lists, and lists with nulls, are text: BigQuery has neither.
    """
    match found.kind:
        case "object":
            fields = [(name, arrow_type(inner, for_bigquery=for_bigquery)) for name, inner in found.fields]
            return pa.struct(fields)
        case "array":
            assert found.item is not None
            if for_bigquery and (found.item.kind == "array" or found.item.is_nullable):
                return pa.string()
            return pa.list_(arrow_type(found.item, for_bigquery=for_bigquery))
        case kind:
            return _PLAIN[kind]


def typed(value: Any, kind: pa.DataType) -> Any:
    """Returns a JSON value as a value of an Arrow type.

    Raises:
        ValueError: It does not fit.
        OverflowError: It is an integer that no float holds.
    """
    if value is None:
        return None
    if pa.types.is_string(kind):
        return as_text(value)
    if pa.types.is_struct(kind) and isinstance(value, dict):
        return {field.name: typed(value.get(field.name), field.type) for field in kind}
    if pa.types.is_list(kind) and isinstance(value, list):
        return [typed(item, kind.value_type) for item in value]
    if pa.types.is_boolean(kind) and isinstance(value, bool):
        return value
    if value in INFINITE and pa.types.is_floating(kind):
        return float(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if pa.types.is_floating(kind):
            return float(value)
        if pa.types.is_integer(kind) and value == int(value) and -(2**63) <= value < 2**63:
            return int(value)
    raise ValueError(f"no value of type {kind}")


def fits(value: Any, kind: pa.DataType) -> bool:
    """Returns whether a JSON value is a value of an Arrow type."""
    try:
        typed(value, kind)
    except (ValueError, OverflowError):
        return False
    return True


def as_text(value: Any) -> str:
    """Returns a value for a text column."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.encode("utf-8", "replace").decode()
