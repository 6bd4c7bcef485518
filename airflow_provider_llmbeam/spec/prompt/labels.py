"""The fields of answers that are labels: their schema is an enum or a boolean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def find_label_fields(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the properties of a schema that are labels, in its order."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return ()
    return tuple(name for name, inner in properties.items() if is_label(inner, schema))


def is_label(schema: Any, whole: Mapping[str, Any]) -> bool:
    """Returns whether a value of a schema is a label.

    Args:
        schema: The schema.
        whole: The schema that it is a part of, with its definitions.
    """
    if not isinstance(schema, Mapping):
        return False
    reference = schema.get("$ref")
    if isinstance(reference, str):  # as pydantic writes an enum: `#/$defs/Severity`
        definitions = whole.get("$defs")
        schema = definitions.get(reference.removeprefix("#/$defs/")) if isinstance(definitions, Mapping) else None
        if not isinstance(schema, Mapping):
            return False
    return isinstance(schema.get("enum"), list) or schema.get("type") == "boolean"
