"""Rows of a pipeline, before and after the answer is added: elements with a schema, or mappings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import TaggedOutput
from apache_beam.typehints.row_type import RowTypeConstraint
from apache_beam.typehints.schemas import named_fields_from_element_type

from airflow_provider_llmbeam.engine.outcome import Completion
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.elements import FailedRow, RenderedRow, Row
from airflow_provider_llmbeam.pipeline.public.answer_fields import AnswerFields
from airflow_provider_llmbeam.pipeline.transforms.rows_to_prompts import Render
from airflow_provider_llmbeam.spec.plain_values import plain_value

_SCALARS = frozenset({str, int, float, bool, bytes, type(None)})


@dataclass(frozen=True)
class Rows:
    """The rows of a collection, and what becomes of them.

    Attributes:
        answer: Fields of the answer.
        columns: Name and Beam type of each field of the rows; `None` for rows without a schema.
        element_type: Beam type of the rows.
    """

    answer: AnswerFields
    columns: tuple[tuple[str, Any], ...] | None
    element_type: Any

    @classmethod
    def of(cls, collection: beam.PCollection, answer: AnswerFields) -> Rows:
        """Returns the rows of a collection.

        Raises:
            JobSpecError: The answer has the name of one of their fields.
        """
        try:
            columns = tuple(named_fields_from_element_type(collection.element_type))
        except TypeError:  # no schema
            return cls(answer, None, Any)
        found = cls(answer, columns, collection.element_type)
        found._check({name for name, _ in columns})
        return found

    @property
    def answered_type(self) -> Any:
        """Beam type of the rows with their answers."""
        if self.columns is None:
            return dict[str, Any]
        return RowTypeConstraint.from_fields([*self.columns, *self.answer.beam_types])

    @property
    def failed_type(self) -> Any:
        """Beam type of failed rows: that of the error output of every transform of Beam YAML."""
        return RowTypeConstraint.from_fields([("element", self.element_type), ("msg", str), ("stack", str)])

    def read(self, element: Any) -> Row:
        """Returns the columns of a row.

        Raises:
            JobSpecError: The answer has the name of one of them.
            TypeError: The element is no row.
        """
        if self.columns is not None:
            return {name: getattr(element, name) for name, _ in self.columns}
        element = _mapping_of(element)
        if not isinstance(element, Mapping):
            raise TypeError(
                "`LLMInference` takes rows (`beam.Row`, a named tuple, a dataclass) or mappings; got a value of "
                f"type {type(element).__name__!r}. Nothing was sent or billed for it."
            )
        self._check({*element})
        return dict(element)

    def answered(self, row: Row, completion: Completion) -> Any:
        """Returns a row with its answer.

        Raises:
            ValueError: The answer does not fit its type.
            OverflowError: A number of it does not.
        """
        if self.columns is None:
            return row | self.answer.values(completion)
        return beam.Row(**row, **self.answer.beam_values(completion))

    def failed(self, failed: FailedRow) -> beam.Row:
        """Returns an element of the error output."""
        element = failed.row if self.columns is None else beam.Row(**failed.row)
        return beam.Row(element=element, msg=f"{failed.failure.kind}: {failed.failure.message}", stack="")

    def _check(self, columns: set[str]) -> None:
        if taken := sorted(columns.intersection(self.answer.names)):
            raise JobSpecError(
                f"The rows have {', '.join(map(repr, taken))} already, which the answer would replace. Rename it "
                "in the rows, or in `prompt.output_schema`. Nothing was sent or billed for them."
            )


class RenderRows(Render):
    """Renders rows with the rows within them as mappings, and outputs them as read."""

    def process(self, row: Row) -> Iterator[tuple[str, RenderedRow] | TaggedOutput]:
        """Renders one row."""
        for found in super().process({name: _with_mappings(value) for name, value in row.items()}):
            if isinstance(found, TaggedOutput):
                yield TaggedOutput(found.tag, replace(found.value, row=row))
            else:
                fingerprint, (_, text, system, media, media_tokens) = found
                yield fingerprint, (row, text, system, media, media_tokens)


def _with_mappings(value: Any) -> Any:
    """Returns a value with the rows within it as mappings, as a source of JSON has them.

    The text of a row has the name of its class, and Beam gives that of a schema a new name in each process:
    prompts of the same rows would differ, and be paid for again.
    """
    value = plain_value(_mapping_of(value))
    if type(value) in _SCALARS:
        return value
    if isinstance(value, Mapping):
        return {name: _with_mappings(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        values = map(_with_mappings, value)
        return [*values] if isinstance(value, list) else (*values,)
    return value


def _mapping_of(value: Any) -> Any:
    """Returns the fields of a row by name, and any other value as it is."""
    if isinstance(value, type):
        return value
    if hasattr(value, "_asdict"):
        return value._asdict()
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return value
