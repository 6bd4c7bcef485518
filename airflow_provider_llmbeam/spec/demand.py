"""The demand of a job: rows and tokens."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from airflow_provider_llmbeam.spec.base import SpecModel


class Demand(SpecModel):
    """Number of rows and tokens per row that a job will send to a model.

    Attributes:
        rows: Number of rows to send, one request each: without duplicates and without rows that are answered
            already.
        input_tokens_per_row: Mean length of a prompt, in tokens.
        output_tokens_per_row: Mean length of an answer, in tokens.
    """

    rows: Annotated[int, Field(ge=0)]
    input_tokens_per_row: Annotated[float, Field(ge=0)]
    output_tokens_per_row: Annotated[float, Field(ge=0)] = 0.0

    @property
    def tokens(self) -> float:
        """Input and output tokens of all rows."""
        return self.rows * (self.input_tokens_per_row + self.output_tokens_per_row)
