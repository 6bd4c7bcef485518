"""Words of what a field takes, for the error of a value that pydantic refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: By kind of pydantic's error (docs.pydantic.dev/latest/errors/validation_errors).
_WORDS = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "callable_type": "must be a function",
    "dict_type": "must be an object with named fields",
    "finite_number": "must be a finite number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be greater than or equal to {ge}",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be less than or equal to {le}",
    "list_type": "must be a list",
    "literal_error": "must be {expected}",
    "missing": "this field is needed",
    "mapping_type": "must be an object with named fields",
    "model_attributes_type": "must be an object with named fields",
    "model_type": "must be an object with named fields",
    "string_too_short": "must not be empty",
    "string_type": "must be a text",
    "timezone_aware": "must be a time with its zone, e.g. '2026-01-01T00:00:00Z'",
    "tuple_type": "must be a list",
    "union_tag_invalid": "must be one of {expected_tags}",
    "union_tag_not_found": "this field is needed",
    "value_error": "{error}",
}


def wanted(kind: str, message: str, context: Mapping[str, Any]) -> str:
    """Returns what a field takes, as the second half of a sentence.

    Args:
        kind: Type of pydantic's error, e.g. `greater_than`.
        message: Its message, for kinds without words of their own.
        context: Its values, e.g. `{"gt": 0}`.
    """
    if kind == "too_short":
        count = context["min_length"]
        return f"must have at least {count} {'item' if count == 1 else 'items'}"
    if kind in _WORDS:
        return _WORDS[kind].format_map({name: _without_zeros(value) for name, value in context.items()})
    return message[:1].lower() + message[1:]


def _without_zeros(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value
