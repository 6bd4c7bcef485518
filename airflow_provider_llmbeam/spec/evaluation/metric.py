"""Metrics: how an answer is compared with what was expected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from airflow_provider_llmbeam.spec.base import FieldFaultError, SpecModel
from airflow_provider_llmbeam.spec.evaluation.judge import Judge, rubric_fault
from airflow_provider_llmbeam.spec.fields.names import FunctionPath
from airflow_provider_llmbeam.spec.fields.text import from_text
from airflow_provider_llmbeam.spec.prompt.answer_type import checked_schema, schema_of


class _FieldMetric(SpecModel):
    """Fields of a metric that compares a field of the answer with a column of the golden set.

    Attributes:
        field: Dotted path of the field, for answers with an output schema. `None`: the name of the metric. An
            answer without a schema, or one that is no object, is compared as a whole.
        expected: Column with the expected value. `None`: `expected_` and the name of the metric.
    """

    field: Annotated[str, Field(min_length=1)] | None = None
    expected: Annotated[str, Field(min_length=1)] | None = None

    def field_of(self, name: str) -> str:
        """Returns the path of the field of a metric with this name."""
        return self.field or name

    def column_of(self, name: str) -> str:
        """Returns the column with the expected values of a metric with this name."""
        return self.expected or f"expected_{name}"


class _TextMetric(_FieldMetric):
    """Fields of a metric that compares texts.

    Attributes:
        ignore_case: Whether upper and lower case are equal.
        ignore_whitespace: Whether blanks at both ends are left out, and several blanks are one.
    """

    ignore_case: bool = False
    ignore_whitespace: bool = False


class ExactMetric(_TextMetric):
    """Share of the rows whose answer equals the expected value."""

    type: Literal["exact"] = "exact"


class LabelF1Metric(_TextMetric):
    """Mean of the F1 scores of all labels, expected or answered (macro-averaged)."""

    type: Literal["label_f1"] = "label_f1"


class NumericMetric(_FieldMetric):
    """Share of the rows whose number differs from the expected one by at most a tolerance, the larger of the two.

    Attributes:
        absolute_tolerance: Largest difference.
        relative_tolerance: Largest difference as a fraction of the expected number.
    """

    type: Literal["numeric"] = "numeric"
    absolute_tolerance: Annotated[float, Field(ge=0)] = 0.0
    relative_tolerance: Annotated[float, Field(ge=0)] = 0.0


class ValidJsonMetric(SpecModel):
    """Share of the rows whose answer is valid JSON.

    Attributes:
        json_schema: JSON Schema that the answer must match, or a type that has one. `None`: any JSON value, or,
            for a job with `prompt.output_schema`, that schema, which every answer of such a job matches.
    """

    type: Literal["valid_json"] = "valid_json"
    json_schema: Mapping[str, Any] | None = None

    _of_a_type = field_validator("json_schema", mode="before")(schema_of)

    _is_schema = field_validator("json_schema")(checked_schema)


class JudgeMetric(Judge):
    """Mean grade that a judge gives to the answers: from 1, which scores 0, to 5, which scores 1."""

    type: Literal["judge"] = "judge"

    @model_validator(mode="after")
    def _shows_the_answer(self) -> Self:
        if (fault := rubric_fault(self.rubric, "answer")) is not None:
            raise FieldFaultError("rubric", fault)
        return self


class PythonMetric(SpecModel):
    """Mean of the values of a function of yours.

    Attributes:
        function: Where it is, `package.module:name`; the Python of the job imports it. It is called with the row
            of the golden set and the answer (an object with an output schema, else a text), and returns whether
            the answer is right, or a number from 0 to 1.
    """

    type: Literal["python"] = "python"
    function: FunctionPath


def _by_type(value: Any) -> Any:
    """Returns the fields of a metric that is given by its type alone."""
    value = from_text(value)
    return {"type": value} if isinstance(value, str) else value


Metric = Annotated[
    Annotated[
        ExactMetric | LabelF1Metric | NumericMetric | ValidJsonMetric | JudgeMetric | PythonMetric,
        Field(discriminator="type"),
    ],
    BeforeValidator(_by_type),
]
