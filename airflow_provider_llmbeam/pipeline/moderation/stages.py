"""The two stages of moderation in the graph: before the requests of a job, and after its answers."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import apache_beam as beam

from airflow_provider_llmbeam.pipeline.context import RunContext
from airflow_provider_llmbeam.pipeline.elements import FAILED, Request
from airflow_provider_llmbeam.pipeline.job_handler import JobHandler
from airflow_provider_llmbeam.pipeline.moderation.guard import guard_job
from airflow_provider_llmbeam.pipeline.moderation.judging import AskGuard
from airflow_provider_llmbeam.pipeline.moderation.rows import (
    REPLACED,
    TALLIES,
    DecideOnAnswers,
    DecideOnPrompts,
    with_flag,
)
from airflow_provider_llmbeam.pipeline.transforms.read_prompts import ModeratedPrompts
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.counts import Counts
from airflow_provider_llmbeam.spec.safety.moderation import Moderation


@dataclass(frozen=True)
class Results:
    """What a job publishes.

    Attributes:
        answered: `AnsweredRow`s.
        failed: `FailedRow`s.
        tallies: `Tally`s of the rows read and of the guard.
    """

    answered: Sequence[beam.PCollection]
    failed: Sequence[beam.PCollection]
    tallies: Sequence[beam.PCollection]


class GuardHandler(JobHandler[Request]):
    """Handler of the requests to a guard, which are not among the counts of the job that the progress shows."""

    def count(self, counts: Counts) -> None:
        """Counts nothing."""


class ModerationStages:
    """The stages of a job.

    Args:
        spec: The job.
        moderation: Its moderation.
        context: Its run.
    """

    def __init__(self, spec: JobSpec, moderation: Moderation, context: RunContext) -> None:
        self._moderation = moderation
        self._context = context
        # The guard has a budget of its own, and prompts that the provider has not stored.
        of_guard = replace(context, run=uuid.uuid4().hex, cached_head=None)
        self._handler = GuardHandler(guard_job(spec, moderation), of_guard)

    @property
    def judges_prompts(self) -> bool:
        """Whether there is a stage before the requests."""
        return "input" in self._moderation.on

    def of_prompts(
        self,
        prompts: beam.PCollection,
        gate: Callable[[beam.PCollection], beam.PCollection],
        duplicate_keys: beam.pvalue.AsList | None,
    ) -> ModeratedPrompts:
        """Adds the stage before the requests.

        Args:
            prompts: `(fingerprint, RenderedRow)`.
            gate: See `AskGuard`.
            duplicate_keys: See `AskGuard`.
        """
        decided = (
            prompts
            | "TextOfPrompt" >> beam.Map(lambda prompt: (prompt[1][1], prompt))
            | "ModeratePrompts" >> self._asking(gate, duplicate_keys)
            | "DecideOnPrompts"
            >> beam.ParDo(DecideOnPrompts(self._moderation, self._context)).with_outputs(
                FAILED, REPLACED, TALLIES, main="passed"
            )
        )
        return ModeratedPrompts(decided["passed"], decided[REPLACED], decided[FAILED], decided[TALLIES])

    def of_answers(self, results: Results) -> Results:
        """Adds the stage after the answers, and the columns with the flags of prompts."""
        if "output" in self._moderation.on:
            decided = (
                results.answered
                | "AllAnswers" >> beam.Flatten()
                | "TextOfAnswer" >> beam.Map(lambda answered: (answered.completion.text, answered))
                | "ModerateAnswers" >> self._asking(lambda requests: requests, None)
                | "DecideOnAnswers"
                >> beam.ParDo(DecideOnAnswers(self._moderation, self._context)).with_outputs(
                    FAILED, TALLIES, main="passed"
                )
            )
            results = Results(
                [decided["passed"]], [*results.failed, decided[FAILED]], [*results.tallies, decided[TALLIES]]
            )
        if not (self.judges_prompts and self._moderation.flags):
            return results
        return Results(
            [rows | f"FlagAnswers{number}" >> beam.Map(with_flag) for number, rows in enumerate(results.answered)],
            [rows | f"FlagFailed{number}" >> beam.Map(with_flag) for number, rows in enumerate(results.failed)],
            results.tallies,
        )

    def _asking(
        self, gate: Callable[[beam.PCollection], beam.PCollection], duplicate_keys: beam.pvalue.AsList | None
    ) -> AskGuard:
        return AskGuard(self._handler, self._moderation, gate, duplicate_keys)


def moderation_stages(spec: JobSpec, context: RunContext) -> ModerationStages | None:
    """Returns the stages of a job, see `ModerationStages`; `None` for a job without a guard."""
    moderation = spec.safety.moderation
    return None if moderation is None else ModerationStages(spec, moderation, context)
