"""JSON Schemas as structured outputs of Claude take them. Pure.

What the API does not enforce stands in the description, as the published client does it (anthropic 2.14,
`lib._parse._transform`): every answer is validated against the whole schema afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

#: Formats of texts that the API enforces. Source: anthropic 2.14, `SupportedStringFormats`
_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"})
#: Keywords that are sent as they are.
_KEPT = ("enum", "const", "description", "title", "required")
#: Keywords of a schema with several types that are not of each of them, and those of one type alone.
_OF_THE_WHOLE = ("$defs", "definitions", "description", "title")
_ONLY_OF = {
    **dict.fromkeys(("properties", "required", "additionalProperties"), "object"),
    **dict.fromkeys(("items", "minItems", "maxItems"), "array"),
}
_NO_HINT = frozenset({"$schema", "$id", "default", "additionalProperties"})


def claude_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a JSON Schema as the API takes it: objects are closed, and what it lacks is in words."""
    left = _split(dict(_merged(schema)))
    found: dict[str, Any] = {}
    for name in ("$defs", "definitions", "properties"):
        if name in left:
            found[name] = {key: _inner(value) for key, value in left.pop(name).items()}
    if "$ref" in left:
        return {**found, "$ref": left["$ref"]}
    alternatives = [*left.pop("anyOf", ()), *left.pop("oneOf", ())]
    kind = left.pop("type", None)
    if alternatives:
        found["anyOf"] = [_inner(each) for each in alternatives]
    elif kind is not None and not {"enum", "const"} & left.keys():
        found["type"] = kind
    found |= {name: left.pop(name) for name in _KEPT if name in left}
    if kind == "object" or "properties" in found:
        found.setdefault("properties", {})
        found["additionalProperties"] = False
    if "items" in left:
        found["items"] = _inner(left.pop("items"))
    if left.get("minItems") in (0, 1):
        found["minItems"] = left.pop("minItems")
    if left.get("format") in _FORMATS:
        found["format"] = left.pop("format")
    if hints := {name: value for name, value in left.items() if name not in _NO_HINT}:
        words = ", ".join(f"{name}: {_shown(value)}" for name, value in hints.items())
        found["description"] = f"{found['description']} ({words})" if "description" in found else f"({words})"
    return found


def _split(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns a schema with one alternative for each of its types, if it has several."""
    if not isinstance(kinds := schema.pop("type", None), list):
        return schema if kinds is None else {**schema, "type": kinds}
    whole = {name: schema.pop(name) for name in _OF_THE_WHOLE if name in schema}
    return {
        **whole,
        "anyOf": [
            {"type": kind, **{name: value for name, value in schema.items() if _ONLY_OF.get(name, kind) == kind}}
            for kind in kinds
        ],
    }


def _inner(schema: Any) -> Any:
    return claude_schema(schema) if isinstance(schema, Mapping) else schema


def _merged(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a schema whose `allOf` are part of it; the one whose parts disagree keeps the first of them."""
    parts = schema.get("allOf")
    if not isinstance(parts, list) or not all(isinstance(part, Mapping) and "$ref" not in part for part in parts):
        return schema
    merged: dict[str, Any] = {}
    for part in ({name: value for name, value in schema.items() if name != "allOf"}, *map(_merged, parts)):
        for name, value in part.items():
            if name in ("properties", "$defs"):
                merged[name] = {**value, **merged.get(name, {})}
            elif name == "required":
                merged[name] = list(dict.fromkeys([*merged.get(name, ()), *value]))
            else:
                merged.setdefault(name, value)
    return merged


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
