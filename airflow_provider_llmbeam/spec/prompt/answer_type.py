"""Types of the values that a JSON Schema allows, for sinks with typed columns and for the answers of a prompt."""

from __future__ import annotations

import sys
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, Literal
from urllib.parse import unquote

import typing_extensions
from pydantic import PydanticUserError, TypeAdapter

from airflow_provider_llmbeam.spec.fields.text import from_text

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

#: Keywords besides those with `$` that restrict no answer.
_NOTES = (
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "definitions",
    "nullable",
)


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


def checked_schema(schema: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Returns a schema, or `None`, unchanged.

    Raises:
        ValueError: See `AnswerSchema`; or the schema would accept any answer, as nothing in it is a keyword.
    """
    if schema is not None:
        # `jsonschema` takes 60 ms
        from jsonschema import Draft202012Validator

        from airflow_provider_llmbeam.spec.prompt.answer_schema import AnswerSchema

        unknown = [name for name in schema if name not in _NOTES and not name.startswith("$")]
        if unknown and not Draft202012Validator.VALIDATORS.keys() & schema.keys():
            raise ValueError(
                f"accepts any answer, as {unknown[0]!r} is no keyword of JSON Schema; fields belong in "
                f"`properties`: {{'type': 'object', 'properties': {{{unknown[0]!r}: …}}}}"
            )
        AnswerSchema(schema)
    return schema


def schema_of(value: Any) -> Any:
    """Returns the JSON Schema of a type; a schema, and any other value, unchanged.

    Raises:
        ValueError: The type has no JSON Schema; the message is the second half of a sentence.
    """
    value = from_text(value)
    if value and isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return {"type": "string", "enum": list(value)}
    is_type = isinstance(value, type) or typing.get_origin(value) is not None
    if value is None or isinstance(value, Mapping) or not is_type:
        return value
    try:
        return TypeAdapter(_readable(value)).json_schema()
    except (PydanticUserError, NameError, TypeError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(f"is a type without a JSON Schema ({reason})") from None


def _readable(kind: Any) -> Any:
    """Replaces TypedDicts of `typing` by those of `typing_extensions`: pydantic does not read them before 3.12."""
    if sys.version_info >= (3, 12):
        return kind
    if typing.is_typeddict(kind) and type(kind).__module__ == "typing":
        hints = typing.get_type_hints(kind, include_extras=True)
        fields = {name: _field(annotation, name in kind.__required_keys__) for name, annotation in hints.items()}
        made: Any = typing_extensions.TypedDict(kind.__name__, fields)  # type: ignore[misc]
        made.__doc__ = kind.__doc__
        return made
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return typing.Annotated[(_readable(parts[0]), *parts[1:])]
    if origin is None or origin is typing.Literal or not parts:
        return kind
    inner = tuple(map(_readable, parts))
    return typing.Union[inner] if origin in (typing.Union, UnionType) else origin[inner]  # noqa: UP007


def _field(annotation: Any, is_required: bool) -> Any:
    if (origin := typing.get_origin(annotation)) in (typing.Required, typing.NotRequired):
        # `__required_keys__` ignores it where annotations are text (PEP 563).
        is_required = origin is typing.Required
        (annotation,) = typing.get_args(annotation)
    readable = _readable(annotation)
    return typing.Required[readable] if is_required else typing.NotRequired[readable]


def free_map(schema: Any, path: str = "$") -> str | None:
    """Returns where a JSON Schema has an object whose fields it does not name; `None` if it has none.

    Args:
        schema: The schema, or a part of it.
        path: Where it is, for the result.
    """
    if isinstance(schema, list):
        found = (free_map(part, path) for part in schema)
        return next(filter(None, found), None)
    if not isinstance(schema, Mapping):
        return None
    if schema.get("additionalProperties", False) is not False:
        return path
    if schema.get("type") == "object" and not schema.keys() & {"properties", *_APPLICATORS}:
        return path
    named = (
        free_map(part, f"{path}.{name}")
        for keyword in ("properties", "$defs", "definitions")
        for name, part in (schema.get(keyword) or {}).items()
    )
    others = (free_map(schema.get(keyword), path) for keyword in ("items", "anyOf", "oneOf", "allOf"))
    return next(filter(None, (*named, *others)), None)
