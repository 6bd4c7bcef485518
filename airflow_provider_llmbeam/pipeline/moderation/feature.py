"""Moderation as a feature of a job: what is asked of the guard, and what becomes of rows after its verdicts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows

from airflow_provider_llmbeam.engine.outcome import Completion
from airflow_provider_llmbeam.engine.token_counts import NO_TOKENS
from airflow_provider_llmbeam.pipeline.context import NO_RUN, RunContext
from airflow_provider_llmbeam.pipeline.elements import (
    FAILED,
    FLAG,
    AnsweredRow,
    FailedRow,
    Flag,
    RenderedRow,
    Request,
    Row,
    is_flagged,
    refused_row,
    without_flag,
)
from airflow_provider_llmbeam.pipeline.feature import Feature, Prompts, Results
from airflow_provider_llmbeam.pipeline.further_requests import Ask, Asked
from airflow_provider_llmbeam.pipeline.job_handler import JobHandler
from airflow_provider_llmbeam.pipeline.launch.keys import check_model
from airflow_provider_llmbeam.pipeline.moderation.guard import MakeQuestions, guard_job
from airflow_provider_llmbeam.pipeline.moderation.verdict import UNREADABLE, Decision, decide, refusal, usage_of
from airflow_provider_llmbeam.pipeline.reporting.metrics import CountingDoFn
from airflow_provider_llmbeam.pipeline.reporting.tally import Tally
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.counts import Counts
from airflow_provider_llmbeam.spec.safety.moderation import Moderation, Side

REPLACED, TALLIES = "replaced", "tallies"
FINISH_REASON = "moderated"


class ModerationFeature(Feature[Moderation]):
    """A guard model judges prompts before they are sent, and answers before they are published."""

    @staticmethod
    def part_of(spec: JobSpec) -> Moderation | None:
        """Returns `safety.moderation`."""
        return spec.safety.moderation

    def check_keys(self) -> None:
        """Opens the client of the guard model once, which fails if a key is missing.

        Raises:
            JobSpecError: The client cannot be opened.
        """
        check_model(guard_job(self.spec, self.part))

    def change_prompts(self, prompts: Prompts, context: RunContext) -> Prompts:
        """Has the prompts judged."""
        if "input" not in self.part.on:
            return prompts
        decided = (
            prompts.rendered
            | "TextOfPrompt" >> beam.Map(lambda prompt: (prompt[1][1], prompt))
            | "ModeratePrompts" >> self._ask(context, prompts.delay, prompts.duplicate_keys)
            | "DecideOnPrompts"
            >> beam.ParDo(DecideOnPrompts(self.part, context)).with_outputs(
                FAILED, REPLACED, TALLIES, main="passed"
            )
        )
        return replace(
            prompts,
            rendered=decided["passed"],
            replaced=[*prompts.replaced, decided[REPLACED]],
            failed=[*prompts.failed, decided[FAILED]],
            tallies=[*prompts.tallies, decided[TALLIES]],
        )

    def change_answers(self, results: Results, context: RunContext) -> Results:
        """Has the answers judged, and adds the columns with the flags of prompts."""
        if "output" in self.part.on:
            decided = (
                results.answered
                | "AllAnswers" >> beam.Flatten()
                | "TextOfAnswer" >> beam.Map(with_published_text, self.spec.generation.keep_reasoning)
                | "ModerateAnswers" >> self._ask(context)
                | "DecideOnAnswers"
                >> beam.ParDo(DecideOnAnswers(self.part, context)).with_outputs(FAILED, TALLIES, main="passed")
            )
            results = Results(
                [decided["passed"]], [*results.failed, decided[FAILED]], [*results.tallies, decided[TALLIES]]
            )
        if "input" not in self.part.on or not self.part.flags:
            return results
        return Results(
            [rows | f"FlagAnswers{number}" >> beam.Map(move_flag) for number, rows in enumerate(results.answered)],
            [rows | f"FlagFailed{number}" >> beam.Map(move_flag) for number, rows in enumerate(results.failed)],
            results.tallies,
        )

    def _ask(
        self,
        context: RunContext,
        delay: Callable[[beam.PCollection], beam.PCollection] = lambda requests: requests,
        duplicate_keys: beam.pvalue.AsList | None = None,
    ) -> beam.PTransform:
        # The guard has a budget of its own for both sides, and prompts that the provider has not stored.
        of_guard = replace(context, run=f"{context.run}-guard", cached_head=None)
        handler = GuardHandler(guard_job(self.spec, self.part), of_guard)
        make = beam.ParDo(MakeQuestions(handler.spec, self.part))
        return "Question" >> make | "Ask" >> Ask(handler, delay, duplicate_keys, is_verdict=True)


class GuardHandler(JobHandler[Request]):
    """Handler of the requests to a guard, which are not among the counts of the job that the progress shows."""

    def count(self, counts: Counts) -> None:
        """Counts nothing."""


class _Decide(CountingDoFn):
    """Decides what follows for each `Asked` element, and counts it.

    Args:
        moderation: The moderation.
        context: Its run.
    """

    side: Side

    def __init__(self, moderation: Moderation, context: RunContext = NO_RUN) -> None:
        super().__init__(context)
        self._moderation = moderation
        self._numbers: Counter[tuple[str, str, str]] = Counter()

    def start_bundle(self) -> None:
        """Resets the counts."""
        super().start_bundle()
        self._numbers = Counter()

    def finish_bundle(self) -> Iterator[beam.pvalue.TaggedOutput]:
        """Emits the counts."""
        super().finish_bundle()
        tally = Tally(moderation=self._numbers)
        yield beam.pvalue.TaggedOutput(TALLIES, GlobalWindows.windowed_value(tally))

    def decision(self, judged: Asked) -> Decision:
        """Returns what follows for an element."""
        found = decide(judged.outcome, self._moderation)
        self._count_decision(found)
        if judged.is_first:
            self._numbers.update(usage_of(self.side, judged.outcome))
        return found

    def _count_decision(self, found: Decision) -> None:
        if found.failure is not None:
            self._add("rows", "unjudged", 1)
            return
        verdict = "safe" if not found.category else UNREADABLE if found.category == UNREADABLE else "unsafe"
        self._add("rows", verdict, 1)
        if found.category:
            self._add("actions", found.action, 1)
            for category in found.category.split(","):
                self._add("categories", category, 1)

    def _add(self, group: str, name: str, number: int) -> None:
        self._numbers[self.side, group, name] += number


class DecideOnPrompts(_Decide):
    """Passes on the prompts that may be sent, as `(fingerprint, RenderedRow)`.

    Others are output as `failed`, or with their replacement as `replaced`, an `AnsweredRow`.
    """

    side: Side = "input"

    def process(self, judged: Asked) -> Iterator[tuple[str, RenderedRow] | beam.pvalue.TaggedOutput]:
        """Decides on one prompt."""
        found, (fingerprint, (row, *prompt)) = self.decision(judged), judged.element
        match found.action:
            case "allow":
                yield judged.element
            case "flag":
                yield fingerprint, ({**row, FLAG: Flag(found.category)}, *prompt)
            case "replace":
                self.count("resumed")  # done, and no prompt of the job is sent for it
                replaced = replaced_row(row, fingerprint, found, self._moderation, judged.outcome.answered_at)
                yield beam.pvalue.TaggedOutput(REPLACED, replaced)
            case "fail":
                self.count("failed")
                yield beam.pvalue.TaggedOutput(FAILED, FailedRow(row, refusal(found, self._moderation, "prompt")))


class DecideOnAnswers(_Decide):
    """Passes on the answers that may be published, flagged or replaced; others are output as `failed`."""

    side: Side = "output"

    def process(self, judged: Asked) -> Iterator[AnsweredRow | beam.pvalue.TaggedOutput]:
        """Decides on one answer."""
        found = self.decision(judged)
        row = judged_row(cast("AnsweredRow", judged.element), found, self._moderation)
        yield beam.pvalue.TaggedOutput(FAILED, row) if isinstance(row, FailedRow) else row


def replaced_row(row: Row, fingerprint: str, decision: Decision, moderation: Moderation, at: float) -> AnsweredRow:
    """Returns the row of a prompt that is not sent, with its replacement, at a Unix time."""
    answer = Completion(
        text=moderation.replacement or "",
        model="",
        finish_reason=FINISH_REASON,
        tokens=NO_TOKENS,
        cost_nano_usd=0,
        attempts=0,
        latency_seconds=0.0,
        sent_at=at,
        answered_at=at,
    )
    return AnsweredRow(row, fingerprint, answer, "replaced", moderation_input=decision.category)


def judged_row(answered: AnsweredRow, decision: Decision, moderation: Moderation) -> AnsweredRow | FailedRow:
    """Returns what is published of an answer after the verdict on it."""
    match decision.action:
        case "allow":
            return answered
        case "flag":
            return replace(answered, moderation_output=decision.category)
        case "replace":
            answer = replace(
                answered.completion,
                text=moderation.replacement or "",
                citations=None,
                reasoning=None,
                finish_reason=FINISH_REASON,
            )
            return replace(answered, completion=answer, moderation_output=decision.category)
        case "fail":
            return refused_row(answered, refusal(decision, moderation, "answer"))


def with_published_text(answered: AnsweredRow, keeps_reasoning: bool) -> tuple[str, AnsweredRow]:
    """Returns all that is published of an answer, so that all of it is judged, and the answer."""
    text, reasoning = answered.completion.text, answered.completion.reasoning
    if answered.completion.parsed is not None:  # without the escapes that JSON allows for any letter
        text = json.dumps(answered.completion.parsed, ensure_ascii=False)
    return (f"{reasoning}\n\n{text}" if keeps_reasoning and reasoning else text), answered


def move_flag(element: Any) -> Any:
    """Returns an `AnsweredRow` or a `FailedRow` whose row is as read: the flag of its prompt is an attribute."""
    if not is_flagged(element.row):
        return element
    row = without_flag(element.row)
    if isinstance(element, FailedRow):
        return replace(element, row=row)
    return replace(element, row=row, moderation_input=str(element.row[FLAG]))
