"""The fields of an answer that a person reviews, and their form."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.characters import visible
from airflow_provider_llmbeam.spec.fields.suggestion import nearest
from airflow_provider_llmbeam.spec.prompt.answer_schema import AnswerSchema
from airflow_provider_llmbeam.spec.prompt.answer_type import AnswerType, answer_type

#: Field of an answer without fields: a text, or a value that is no object.
WHOLE = "answer"
#: A text beyond this length has a field of several lines.
_LINE = 80
_JSON_TYPES = {"text": "string", "integer": "integer", "number": "number", "boolean": "boolean"}
_SEVERAL_LINES = {"type": "string", "format": "multiline"}
#: Keywords that would refuse a part of an answer.
_OF_THE_WHOLE = {"required", "minProperties", "dependentRequired"}


class AnswerFields:
    """The fields of the answers of a job.

    Args:
        output_schema: JSON Schema of the answers; `None` for texts.

    Attributes:
        names: Names of the fields.
    """

    def __init__(self, output_schema: Mapping[str, Any] | None) -> None:
        self._schema = output_schema
        found = AnswerType("text") if output_schema is None else answer_type(output_schema)
        self._is_whole = not found.fields
        self._types = dict(found.fields) or {WHOLE: found}
        self.names = tuple(self._types)

    def check(self, argument: str, names: Collection[str]) -> None:
        """Checks that an answer has fields.

        Args:
            argument: Argument that names them.
            names: Their names.

        Raises:
            JobSpecError: It has not.
        """
        for name in names:
            if name not in self.names:
                hint = nearest(name, self.names)
                end = f"; {hint}{'' if hint.endswith('?') else '.'}" if hint else "."
                raise JobSpecError(
                    f"`{argument}`: the answers have no field {name!r}{end} Nothing was sent or billed."
                )

    def values(self, answer: Any) -> dict[str, Any]:
        """Returns the values of the fields of an answer; `None` for one that it lacks."""
        if self._is_whole:
            return {WHOLE: answer}
        return {name: answer.get(name) if isinstance(answer, Mapping) else None for name in self.names}

    def form(self, name: str, value: Any) -> dict[str, Any]:
        """Returns the form of a field.

        Args:
            name: The field.
            value: Its value in the answer.

        Returns:
            `value`, as the form shows it; `schema`, the JSON Schema of what may be entered; and `is_json`, whether
            that is the JSON text of the value. It is for values without a widget of their own, and for texts with
            characters that a person does not see, or a database refuses.
        """
        found = self._types[name]
        is_text = isinstance(value, str)
        if found.kind not in _JSON_TYPES or (is_text and visible(value) != value):
            return {"value": json.dumps(value, indent=2), "schema": _SEVERAL_LINES, "is_json": True}
        kinds = [_JSON_TYPES[found.kind]]
        if found.is_nullable or value is None:
            kinds.append("null")
        schema: dict[str, Any] = {"type": kinds if len(kinds) > 1 else kinds[0]}
        if options := self._options(name):
            schema["enum"] = [*options, *([None] if "null" in kinds and None not in options else [])]
        elif is_text and (len(value) > _LINE or "\n" in value):
            schema |= {"format": "multiline"}
        return {"value": value, "schema": schema, "is_json": False}

    def mismatch(self, values: Mapping[str, Any]) -> str | None:
        """Returns why these values of some fields can be no part of an answer, or `None`."""
        if self._schema is None:
            return None if isinstance(values[WHOLE], str) else "it is no text"
        if self._is_whole:
            return AnswerSchema(self._schema).mismatch(values[WHOLE])
        if not self._properties:  # the schema refers to its root, whose `required` fields are not all here
            return None
        part = {keyword: value for keyword, value in self._schema.items() if keyword not in _OF_THE_WHOLE}
        return AnswerSchema(part).mismatch(dict(values))

    @property
    def _properties(self) -> Mapping[str, Any]:
        found = (self._schema or {}).get("properties")
        return found if isinstance(found, Mapping) else {}

    def _options(self, name: str) -> list[Any]:
        """Returns the values that the schema lists for a field, also where it refers to them; none otherwise."""
        found = self._properties.get(name)
        reference = found.get("$ref") if isinstance(found, Mapping) else None
        if isinstance(reference, str):
            found = ((self._schema or {}).get("$defs") or {}).get(reference.removeprefix("#/$defs/"))
        options = found.get("enum") if isinstance(found, Mapping) else None
        return options if isinstance(options, list) else []
