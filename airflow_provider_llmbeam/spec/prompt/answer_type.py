"""Types of the values that a JSON Schema allows, for sinks with typed columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote

Kind = Literal["text", "integer", "number", "boolean", "object", "array", "any"]

#: Maximum number of types in an answer; beyond it they are `any`. References may multiply them without end.
MAX_TYPES = 2000
_KINDS: dict[str, Kind] = {
    "string": "text",
    "integer": "integer",
    "number": "number",
    "boolean": "boolean",
    "object": "object",
    "array": "array",
}
#: Keywords that describe the value itself.
_APPLICATORS = {"$ref", "allOf", "anyOf", "oneOf", "properties"}
_PYTHON: dict[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}


@dataclass(frozen=True, slots=True)
class AnswerType:
    """Type of a value.

    Attributes:
        kind: `any` where the schema allows several types, or does not name one.
        is_nullable: Whether the schema allows null.
        fields: Fields of an `object`, by name.
        item: Type of the items of an `array`.
    """

    kind: Kind
    is_nullable: bool = False
    fields: tuple[tuple[str, AnswerType], ...] = ()
    item: AnswerType | None = None


def answer_type(schema: Mapping[str, Any]) -> AnswerType:
    """Returns the type of the answers of a schema."""
    return _Reader(schema).type_of(schema, ())


class _Reader:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._count = 0

    def type_of(self, schema: Any, above: tuple[str, ...]) -> AnswerType:
        """Returns the type of a part of the schema; `above` has the references that it is within."""
        self._count += 1
        if not isinstance(schema, Mapping) or self._count > MAX_TYPES:
            return AnswerType("any", is_nullable=True)
        if len(schema.keys() & _APPLICATORS) > 1:  # each may have fields that the others lack
            return AnswerType("any", is_nullable=True)
        if isinstance(reference := schema.get("$ref"), str):
            if reference in above:
                return AnswerType("any", is_nullable=True)
            return self.type_of(self._target(reference), (*above, reference))
        for keyword in ("anyOf", "oneOf", "allOf"):
            if keyword in schema:
                return self._choice(schema[keyword], keyword, above)
        return self._plain(schema, above)

    def _choice(self, options: Any, keyword: str, above: tuple[str, ...]) -> AnswerType:
        options = options if isinstance(options, list) else []
        others = [option for option in options if option != {"type": "null"}]
        if len(others) != 1:
            return AnswerType("any", is_nullable=True)
        found = self.type_of(others[0], above)
        is_nullable = found.is_nullable or (keyword != "allOf" and len(others) < len(options))
        return AnswerType(found.kind, is_nullable, found.fields, found.item)

    def _plain(self, schema: Mapping[str, Any], above: tuple[str, ...]) -> AnswerType:
        names = _names(schema)
        is_nullable = "null" in names
        kinds = names - {"null"}
        if kinds == {"integer", "number"}:
            kinds = {"number"}
        kind = _KINDS.get(next(iter(kinds)), "any") if len(kinds) == 1 else "any"
        if kind == "object":
            properties = schema.get("properties")
            if not isinstance(properties, Mapping) or not properties:
                return AnswerType("any", is_nullable=True)
            fields = tuple((name, self.type_of(part, above)) for name, part in properties.items())
            return AnswerType("object", is_nullable, fields)
        if kind == "array":
            if "prefixItems" in schema or "items" not in schema:
                return AnswerType("any", is_nullable=True)
            return AnswerType("array", is_nullable, item=self.type_of(schema["items"], above))
        return AnswerType(kind, is_nullable or kind == "any")

    def _target(self, reference: str) -> Any:
        """Returns what a reference into the schema refers to; others, by `$id` or anchor, are not followed."""
        if not reference.startswith("#"):
            return None
        found: Any = self._root
        for part in filter(None, reference[1:].split("/")):
            name = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list):
                found = found[int(name)] if name.isdecimal() and int(name) < len(found) else None
            else:
                found = found.get(name) if isinstance(found, Mapping) else None
        return found if not reference[1:2].isalnum() else None


def _names(schema: Mapping[str, Any]) -> set[str]:
    """Returns the names of the types that a part of a schema allows, possibly none."""
    given = schema.get("type")
    if given is not None:
        return {given} if isinstance(given, str) else set(given)
    values = (
        schema["enum"] if isinstance(schema.get("enum"), list) else [schema[k] for k in ("const",) if k in schema]
    )
    if values:
        return {_PYTHON.get(type(value), "any") for value in values}
    return {"object"} if "properties" in schema else set()
