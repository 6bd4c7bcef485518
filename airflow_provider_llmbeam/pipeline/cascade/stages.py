"""The stages of a cascade as jobs of their own, with the journal of the job, and what their answers say."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_llmbeam.engine.bill import paid_for
from airflow_provider_llmbeam.engine.outcome import Completion, Failure, Outcome
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.pipeline.cascade.agreement import find_label_path, label_of
from airflow_provider_llmbeam.pipeline.cascade.calibration import StageAnswer
from airflow_provider_llmbeam.pipeline.elements import FailedRow, Row
from airflow_provider_llmbeam.pipeline.prompt_of_row import RowPrompts
from airflow_provider_llmbeam.pipeline.records import answer_value
from airflow_provider_llmbeam.spec.cascade import AnyStage, Cascade, FieldScore, LogprobScore, RepeatsScore, Stage
from airflow_provider_llmbeam.spec.distilled import ColumnVectors, DistilledStage
from airflow_provider_llmbeam.spec.job import JobSpec


def stage_jobs(spec: JobSpec, cascade: Cascade) -> tuple[JobSpec, ...]:
    """Returns the jobs that ask the stages of a cascade."""
    return tuple(cascade.stage_job(spec, index) for index in range(len(cascade.stages)))


def prompt_of_column(column: str, row: Row) -> Prompt | None:
    """Returns the vector of a row as a text; `None` if its column has none."""
    vector = row.get(column)
    if not isinstance(vector, list | tuple) or not vector:
        return None
    is_vector = all(isinstance(each, int | float) and math.isfinite(each) for each in vector)
    return Prompt(json.dumps([float(each) for each in vector]), None) if is_vector else None


def samples_of(stage: AnyStage) -> int:
    """Returns the number of answers of a stage to a prompt."""
    return stage.score.samples if isinstance(stage, Stage) and isinstance(stage.score, RepeatsScore) else 1


class StagePrompts:
    """Makes the prompts of one stage. One for each process: it is not pickled.

    Args:
        job: The job of the stage, see `stage_jobs`.
        stage: The stage.
    """

    def __init__(self, job: JobSpec, stage: AnyStage) -> None:
        self._stage = stage
        self._fingerprint = job.fingerprinter()
        self._own = None if stage.prompt is None else RowPrompts(job)

    def of(self, row: Row, prompt: Prompt) -> tuple[str, Prompt] | None:
        """Returns the prompt of a row and its fingerprint; `None` if there is none.

        There is none, either, if more had to be masked than in the prompt of `model`: the row would then have a
        vault without these values.

        Args:
            row: The row, masked if the job masks rows.
            prompt: Its prompt for `model`.
        """
        if self._own is not None:
            rendered = self._own.render(row)
            if isinstance(rendered, FailedRow) or rendered.row != row:
                return None
            prompt = rendered.prompt
        if isinstance(self._stage, DistilledStage):
            if isinstance(self._stage.embedding, ColumnVectors):
                if (vector := prompt_of_column(self._stage.embedding.column, row)) is None:
                    return None
                prompt = vector
            prompt = Prompt(prompt.text, None)
        return self._fingerprint(prompt.text, prompt.system, prompt.media), prompt


def sample_fingerprint(fingerprint: str, number: int) -> str:
    """Returns the fingerprint of one of several answers to a prompt; that of the first is the prompt's own."""
    return hashlib.sha256(f"{fingerprint} {number}".encode()).hexdigest() if number else fingerprint


def merge_samples(outcomes: Sequence[tuple[Outcome, bool]]) -> tuple[Outcome, bool]:
    """Returns the first answer to a prompt with what all of this run have cost, and whether any is of this run.

    Args:
        outcomes: The outcomes, and whether each was paid for in this run.
    """
    first, is_first = outcomes[0]
    if len(outcomes) == 1:
        return first, is_first
    paid = [outcome for outcome, is_first in outcomes if is_first]
    return replace(first, **paid_for(paid)), bool(paid)


class AnswerReader:
    """Reads from answers what a cascade decides by.

    Args:
        spec: The job.
    """

    def __init__(self, spec: JobSpec) -> None:
        cascade, schema = spec.cascade, spec.prompt.output_schema
        self._has_schema = schema is not None
        self._label_path = (
            None if cascade is None else find_label_path(cascade.agreement, schema, spec.generation.choices)
        )

    def value(self, answer: Completion) -> Any:
        """Returns an answer: a value of the output schema, or a text."""
        return answer_value(answer, has_schema=self._has_schema)

    def label(self, answer: Completion) -> str | None:
        """Returns the class of an answer; `None` for a job without classes."""
        return label_of(self.value(answer), self._label_path)

    def answer(self, stage: AnyStage, outcomes: Sequence[Outcome]) -> StageAnswer | None:
        """Returns what the choice needs of the answer of a stage; `None` if it failed, or has no score.

        Args:
            stage: The stage.
            outcomes: Its answers to a prompt, the first of which counts.
        """
        first = outcomes[0]
        if isinstance(first, Failure) or (score := self._score(stage, first, outcomes)) is None:
            return None
        return StageAnswer(score, label=self.label(first))

    def _score(self, stage: AnyStage, first: Completion, outcomes: Sequence[Outcome]) -> float | None:
        if isinstance(stage, DistilledStage):
            return first.mean_logprob
        match stage.score:
            case LogprobScore():
                return first.mean_logprob if stage.score.of == "mean" else first.score_logprob
            case FieldScore():
                return _number(_field(first.parsed, stage.score.field.split(".")))
            case RepeatsScore():
                value = self.value(first)
                equal = [isinstance(each, Completion) and self.value(each) == value for each in outcomes]
                return float(sum(equal) / len(outcomes))


def _field(value: Any, path: Sequence[str]) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _number(value: Any) -> float | None:
    return None if isinstance(value, bool) or not isinstance(value, int | float) else float(value)
