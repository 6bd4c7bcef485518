"""JSON Schemas of Python types: pydantic classes, TypedDicts, dataclasses, enums, generics."""

from __future__ import annotations

import sys
import typing
from collections.abc import Mapping
from types import UnionType
from typing import Any

import typing_extensions
from pydantic import PydanticUserError, TypeAdapter

from airflow_provider_llmbeam.spec.fields.text import from_text

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
