"""How two answers are compared: as texts, as numbers, or by a judge."""

from __future__ import annotations

import re
from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from airflow_provider_llmbeam.spec.base import SpecModel
from airflow_provider_llmbeam.spec.fields.text import from_text
from airflow_provider_llmbeam.spec.limits import Limits, unpriced_fault
from airflow_provider_llmbeam.spec.model import Generation, Model
from airflow_provider_llmbeam.spec.prompt.names import missing_variable
from airflow_provider_llmbeam.spec.prompt.prompt import row_template


class TextComparison(SpecModel):
    """Fields of a comparison of texts.

    Attributes:
        ignore_case: Whether upper and lower case are equal.
        ignore_whitespace: Whether blanks at both ends are left out, and several blanks are one.
    """

    ignore_case: bool = False
    ignore_whitespace: bool = False


class NumericComparison(SpecModel):
    """Fields of a comparison of numbers.

    Attributes:
        absolute_tolerance: Largest difference.
        relative_tolerance: Largest difference as a fraction of the expected number.
    """

    absolute_tolerance: Annotated[float, Field(ge=0)] = 0.0
    relative_tolerance: Annotated[float, Field(ge=0)] = 0.0


class Judge(SpecModel):
    """A model that judges answers.

    Attributes:
        rubric: Template of the question to the judge. `row` has the columns of the row; for a metric also
            `answer`, and for a comparison `first` and `second`, two answers that are shown in both orders. An
            answer with an output schema is an object: `{{ row.answer.label }}`, `{{ row.answer | tojson }}`.
            Airflow does not render this field.
        model: The judge; preferably of another family than the model that it judges.
        generation: Parameters of its answers.
        limits: Its rates and its budget, which are not those of the job.
    """

    rubric: Annotated[str, Field(min_length=1)]
    model: Model
    generation: Generation = Generation()
    limits: Limits = Limits()

    @field_validator("rubric")
    @classmethod
    def _is_template(cls, rubric: str) -> str:
        row_template(rubric)
        if (fault := missing_variable(rubric, {})) is not None:
            raise ValueError(fault)
        return rubric

    @model_validator(mode="after")
    def _budget_has_price(self) -> Self:
        if fault := unpriced_fault(self.model, self.limits):
            raise fault
        return self


def rubric_fault(rubric: str, *columns: str) -> str | None:
    """Returns the fault of a rubric that does not show what is to be judged, or `None`."""
    for column in columns:
        if not re.search(rf"\brow\s*(?:\.\s*{column}\b|\[\s*['\"]{column}['\"]\s*\])", rubric):
            return f"must show the judge what it judges: it lacks `{{{{ row.{column} }}}}`"
    return None


def by_type(value: Any) -> Any:
    """Returns the fields of a comparison that is given by its type alone."""
    value = from_text(value)
    return {"type": value} if isinstance(value, str) else value
