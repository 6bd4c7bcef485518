"""The fields that an answer adds to a row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any

import apache_beam as beam
from apache_beam import typehints
from apache_beam.typehints.row_type import RowTypeConstraint

from airflow_provider_llmbeam.engine.outcome import Completion
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.elements import Row
from airflow_provider_llmbeam.pipeline.sinks.parquet import arrow_type, typed
from airflow_provider_llmbeam.spec.prompt.answer_type import AnswerType, answer_type
from airflow_provider_llmbeam.spec.sink import AnswerColumns

_TEXT = AnswerType("text")
_PAGE = (("uri", _TEXT), ("title", _TEXT), ("texts", AnswerType("array", item=_TEXT)))
#: Fields that parameters of the answer add, see `spec.Generation.extra_columns`.
_EXTRAS = {
    "citations": AnswerType("array", is_nullable=True, item=AnswerType("object", fields=_PAGE)),
    "mean_logprob": AnswerType("number", is_nullable=True),
    "reasoning": AnswerType("text", is_nullable=True),
}
_PLAIN = {"text": str, "any": str, "integer": int, "number": float, "boolean": bool}


@dataclass(frozen=True)
class AnswerFields:
    """Names, types and values of the fields of an answer.

    Attributes:
        fields: Name and type of each field.
        has_schema: Whether the answer is a value of a schema; else it is a text.
        form: Form of an answer with a schema.
        extras: Fields that parameters of the answer add.
    """

    fields: tuple[tuple[str, AnswerType], ...]
    has_schema: bool
    form: AnswerColumns
    extras: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, output_schema: Mapping[str, Any] | None, form: AnswerColumns, extras: tuple[str, ...] = ()
    ) -> AnswerFields:
        """Returns the fields of answers.

        Raises:
            JobSpecError: The form is not known, or no form of answers with this schema.
        """
        if form not in ("struct", "flat", "json"):
            raise JobSpecError(f"`answer_columns`: must be 'struct', 'flat' or 'json'; got {form!r}.")
        has_schema = output_schema is not None
        found = _TEXT if output_schema is None else answer_type(output_schema)
        if form == "flat":
            if not found.fields:
                raise JobSpecError(
                    "`answer_columns`: 'flat' needs a `prompt.output_schema` of an object with properties."
                )
            return cls(found.fields, has_schema, form, extras)
        return cls((("answer", _TEXT if form == "json" else found),), has_schema, form, extras)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the fields."""
        return (*(name for name, _ in self.fields), *self.extras)

    @property
    def beam_types(self) -> list[tuple[str, Any]]:
        """Name and Beam type of each field.

        Raises:
            JobSpecError: A property of the schema has a name that no field of a Beam row can have.
        """
        return [(name, _beam_type(kind, is_required=required)) for name, kind, required in self._typed]

    @property
    def _typed(self) -> list[tuple[str, AnswerType, bool]]:
        is_required = self.form != "flat"
        fields = [(_field_name(name), kind, is_required) for name, kind in self.fields]
        return [*fields, *((name, _EXTRAS[name], True) for name in self.extras)]

    def values(self, completion: Completion) -> Row:
        """Returns the fields of an answer as JSON values.

        Raises:
            ValueError: It is no object, whose properties are the fields.
        """
        answer = completion.parsed if self.has_schema else completion.text
        extras = {name: getattr(completion, name) for name in self.extras}
        if self.form == "flat":
            if not isinstance(answer, dict):
                raise ValueError("it is no object")
            return {**{name: answer.get(name) for name, _ in self.fields}, **extras}
        if self.form == "json" and not isinstance(answer, str):
            answer = json.dumps(answer, ensure_ascii=False)
        return {"answer": answer, **extras}

    def beam_values(self, completion: Completion) -> Row:
        """Returns the fields of an answer as values of their Beam types.

        Raises:
            ValueError: A value is none of its type.
            OverflowError: An integer does not fit into 64 bits, or no float holds it.
        """
        values = self.values(completion)
        return {
            name: _beam_value(typed(values[name], arrow_type(kind)), kind, is_required=required)
            for name, kind, required in self._typed
        }


def _beam_type(found: AnswerType, *, is_required: bool = False) -> Any:
    """Returns the Beam type of a value. A property of an object is optional: an answer need not have it."""
    kind: Any
    if found.kind == "object":
        kind = RowTypeConstraint.from_fields(
            [(_field_name(name), _beam_type(inner)) for name, inner in found.fields]
        )
    elif found.kind == "array":
        assert found.item is not None
        kind = typehints.Sequence[_beam_type(found.item, is_required=True)]
    else:
        kind = _PLAIN[found.kind]
    return kind if is_required and not found.is_nullable else typehints.Optional[kind]


def _field_name(name: str) -> str:
    if not name.isidentifier() or iskeyword(name) or name.startswith("_"):
        raise JobSpecError(
            f"`prompt.output_schema`: no field of a Beam row can be named {name!r}. Rename the property, or set "
            "`answer_columns` to 'json'."
        )
    return name


def _beam_value(value: Any, found: AnswerType, *, is_required: bool = False) -> Any:
    if value is None and is_required and not found.is_nullable:
        raise ValueError("null in place of a value")
    if isinstance(value, dict):
        return beam.Row(**{name: _beam_value(value[name], inner) for name, inner in found.fields})
    if isinstance(value, list) and found.item is not None:
        return [_beam_value(item, found.item, is_required=True) for item in value]
    return value
