"""What a job will ask of a model, in numbers."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from airflow_provider_llmbeam.spec.base import SpecModel


class Demand(SpecModel):
    """Rows times tokens.

    Attributes:
        rows: That the model will be asked about, one request each: without duplicates, and without those that
            are answered already.
        input_tokens_per_row: Of the prompt, on average.
        output_tokens_per_row: Of the answer, on average.
    """

    rows: Annotated[int, Field(ge=0)]
    input_tokens_per_row: Annotated[float, Field(ge=0)]
    output_tokens_per_row: Annotated[float, Field(ge=0)] = 0.0

    @property
    def tokens(self) -> float:
        """Input and output of all rows."""
        return self.rows * (self.input_tokens_per_row + self.output_tokens_per_row)
