"""What the process of a job can do with it instead of running it: a table for both sides.

`pipeline.steps` has the function of each. A further step is a line here, a function there, and its caller.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

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
from airflow_provider_llmbeam.spec.stream import StreamRun


class EstimateSample(SpecModel):
    """The prompts that an estimate of a job sends.

    Attributes:
        sample_size: Number of prompts; the job keeps their answers. With 0 nothing is sent.
    """

    sample_size: Annotated[int, Field(ge=0)] = 32


class CascadeTable(SpecModel):
    """The table of thresholds of a cascade that is only calibrated.

    Attributes:
        max_points: Number of its lines.
    """

    max_points: Annotated[int, Field(ge=1)] = 20


#: How much of its source a process of a job reads: of a query, a sample is its first rows.
Reads = Literal["nothing", "sample", "all"]


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the table.

    Attributes:
        input: Type of what the step is asked for.
        sends: Returns whether a request is sent for an input.
        reads: How much of the source of the job is read.
    """

    input: type[SpecModel]
    sends: Callable[[Any], bool]
    reads: Reads = "nothing"


def reads_of(step: str) -> Reads:
    """Returns how much of its source a process reads, by its step; a job that is run or submitted reads all."""
    return STEPS[step].reads if step in STEPS else "all"


STEPS = {
    "estimate": Step(EstimateSample, lambda sample: sample.sample_size > 0, "sample"),
    "evaluate": Step(Evaluation, lambda _: True),
    "compare": Step(Comparison, lambda _: True, "sample"),
    "preview": Step(PreviewSample, lambda sample: sample.sends, "sample"),
    "check": Step(PreviewSample, lambda _: False, "sample"),
    "cascade": Step(CascadeTable, lambda _: True, "all"),
    "stream": Step(StreamRun, lambda _: True, "all"),
    "sample_answers": Step(AnswerSample, lambda _: False, "sample"),
    "add_golden": Step(GoldenAddition, lambda _: False),
    "diff": Step(JobSpec, lambda _: False, "sample"),  # the earlier spec of the job
    "forget": Step(RowsToForget, lambda _: False, "all"),
}
