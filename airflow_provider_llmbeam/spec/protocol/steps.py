"""What the process of a job can do with it instead of running it: a table for both sides.

`pipeline.steps` has the function of each. A further step is a line here, a function there, and its caller.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from airflow_provider_llmbeam.spec.base import SpecModel
from airflow_provider_llmbeam.spec.evaluation import (
    AnswerSample,
    Comparison,
    Evaluation,
    GoldenAddition,
    PreviewSample,
)
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.safety import RowsToForget


class EstimateSample(SpecModel):
    """The prompts that an estimate of a job sends.

    Attributes:
        sample_size: Number of prompts; the job keeps their answers. With 0 nothing is sent.
    """

    sample_size: Annotated[int, Field(ge=0)] = 32


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the table.

    Attributes:
        input: Type of what the step is asked for.
        sends: Returns whether a request is sent for an input.
    """

    input: type[SpecModel]
    sends: Callable[[Any], bool]


STEPS = {
    "estimate": Step(EstimateSample, lambda sample: sample.sample_size > 0),
    "evaluate": Step(Evaluation, lambda _: True),
    "compare": Step(Comparison, lambda _: True),
    "preview": Step(PreviewSample, lambda sample: sample.sends),
    "check": Step(PreviewSample, lambda _: False),
    "sample_answers": Step(AnswerSample, lambda _: False),
    "add_golden": Step(GoldenAddition, lambda _: False),
    "diff": Step(JobSpec, lambda _: False),  # the earlier spec of the job
    "forget": Step(RowsToForget, lambda _: False),
}
