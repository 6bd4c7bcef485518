"""The comparison of a job with another prompt, model or parameters."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from airflow_provider_llmbeam.spec.base import FieldFaultError, SpecModel
from airflow_provider_llmbeam.spec.evaluation.judge import Judge, rubric_fault
from airflow_provider_llmbeam.spec.limits import Limits
from airflow_provider_llmbeam.spec.model import Generation, Model
from airflow_provider_llmbeam.spec.prompt import Prompt


class Alternative(SpecModel):
    """What is different in the other job; each part replaces that of the job as a whole.

    Attributes:
        prompt: The other prompt. `None`: that of the job.
        model: The other model. `None`: that of the job.
        generation: The other parameters. `None`: those of the job.
        limits: The other rates, budget and price. `None`: those of the job, without its `price` if the
            model differs.
    """

    prompt: Prompt | None = None
    model: Model | None = None
    generation: Generation | None = None
    limits: Limits | None = None

    @model_validator(mode="after")
    def _differs(self) -> Self:
        if self.prompt is None and self.model is None and self.generation is None:
            raise ValueError("needs a `prompt`, a `model` or a `generation` that differs from those of the job")
        return self


class Comparison(SpecModel):
    """The comparison of two jobs on the same sample of a source.

    Attributes:
        other: What is different in the other job.
        sample_size: Number of rows: those with the smallest hashes of their keys, which are a random selection,
            and the same in every run.
        judge: Judges the answers that differ, each pair in both orders. `None`: they are not judged.
        max_cases: Maximum number of differing answers that are listed.
        seed: Seed of the bootstrap intervals.
    """

    other: Alternative
    sample_size: Annotated[int, Field(ge=1, le=5000)] = 200
    judge: Judge | None = None
    max_cases: Annotated[int, Field(ge=0, le=1000)] = 20
    seed: int = 0

    @field_validator("judge")
    @classmethod
    def _shows_both_answers(cls, judge: Judge | None) -> Judge | None:
        if judge is not None and (fault := rubric_fault(judge.rubric, "first", "second")) is not None:
            raise FieldFaultError("rubric", fault)
        return judge

    @property
    def models(self) -> tuple[Model, ...]:
        """The other model and that of the judge, if there are any."""
        judge = None if self.judge is None else self.judge.model
        return tuple(model for model in (self.other.model, judge) if model is not None)
