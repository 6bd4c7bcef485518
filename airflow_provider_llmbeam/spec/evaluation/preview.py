"""The preview of a job."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from airflow_provider_llmbeam.spec.base import SpecModel
from airflow_provider_llmbeam.spec.characters import valid_text


class PreviewSample(SpecModel):
    """The rows that a preview of a job shows.

    Attributes:
        rows: Number of rows.
        by: `random` selects rows at random, the same ones for the same `seed`; `length` short ones, long ones and
            some between them, by the tokens of their prompts.
        seed: Seed of the selection at random.
        keys: Keys of the rows, in place of `rows` and `by`: each the value of the key column, or the JSON list of
            the values of several ones.
        sends: Whether the prompts are sent; otherwise they are only rendered.
    """

    rows: Annotated[int, Field(ge=1, le=100)] = 3
    by: Literal["random", "length"] = "random"
    seed: int = 0
    keys: tuple[Annotated[str, AfterValidator(valid_text)], ...] = ()
    sends: bool = True
