"""What is done with answers in which the model altered a placeholder of personal data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows

from airflow_provider_llmbeam.pipeline.context import RunContext
from airflow_provider_llmbeam.pipeline.elements import FAILED, FLAG, AnsweredRow, FailedRow, Request
from airflow_provider_llmbeam.pipeline.further_requests.ask import Ask, Asked
from airflow_provider_llmbeam.pipeline.job_handler import JobHandler
from airflow_provider_llmbeam.pipeline.moderation.stages import Results
from airflow_provider_llmbeam.pipeline.privacy.repair import altered_row, repair_fingerprint, repair_text, repaired
from airflow_provider_llmbeam.pipeline.privacy.usage import returned_of
from airflow_provider_llmbeam.pipeline.prompt_of_row import RowPrompts
from airflow_provider_llmbeam.pipeline.reporting.tally import Tally
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.counts import Counts

_ALTERED, _TALLIES = "altered", "tallies"


def without_altered(results: Results, spec: JobSpec, context: RunContext) -> Results:
    """Applies `privacy.on_altered` to the answers of a job.

    Args:
        results: The answers, not yet restored.
        spec: The job.
        context: Its run, whose budget is also that of the repairs.
    """
    privacy = spec.safety.privacy
    if privacy is None or privacy.on_altered == "keep":
        return results
    is_failed = privacy.on_altered == "fail"
    found = (
        results.answered
        | "AnswersWithPlaceholders" >> beam.Flatten()
        | "FindAltered"
        >> beam.ParDo(_FailAltered() if is_failed else _AskAgain(spec)).with_outputs(
            FAILED, _ALTERED, main="answered"
        )
    )
    if is_failed:
        return Results([found["answered"]], [*results.failed, found[FAILED]], results.tallies)
    settled = (
        found[_ALTERED]
        | "Repair" >> Ask(RepairHandler(spec, context))
        | "Repaired" >> beam.ParDo(_Settle()).with_outputs(FAILED, _TALLIES, main="answered")
    )
    return Results(
        [found["answered"], settled["answered"]],
        [*results.failed, found[FAILED], settled[FAILED]],
        [*results.tallies, settled[_TALLIES]],
    )


class RepairHandler(JobHandler[Request]):
    """Handler of requests that repair answers: their cost counts, and their rows have been counted before."""

    def count(self, counts: Counts) -> None:
        """Counts what was sent and billed."""
        super().count(replace(counts, answered=0, failed=0))


class _FailAltered(beam.DoFn):
    """Outputs answers in which a placeholder was altered as `failed`."""

    def process(self, answered: AnsweredRow) -> Iterator[AnsweredRow | beam.pvalue.TaggedOutput]:
        found = returned_of(answered)
        if not found.altered:
            yield answered
            return
        action = "`safety.privacy.on_altered` is 'fail'"
        yield beam.pvalue.TaggedOutput(FAILED, altered_row(answered, found, action))


class _AskAgain(beam.DoFn):
    """Outputs what `Ask` needs for the repair of answers in which a placeholder was altered as `altered`."""

    def __init__(self, spec: JobSpec) -> None:
        super().__init__()
        self._spec = spec

    def setup(self) -> None:
        """Reads the key, loads the detectors and compiles the templates, once per worker."""
        self._prompts = RowPrompts(self._spec)

    def process(self, answered: AnsweredRow) -> Iterator[AnsweredRow | beam.pvalue.TaggedOutput]:
        found = returned_of(answered)
        if not found.altered:
            yield answered
            return
        # Answers do not carry their prompt: it is rendered again, and has the same placeholders as before.
        row = {column: value for column, value in answered.row.items() if column != FLAG}
        asked = self._prompts.render(row)
        if isinstance(asked, FailedRow):  # e.g. by the time limit of a pattern
            action = f"its prompt could not be rendered again for a repair ({asked.failure.message})"
            yield beam.pvalue.TaggedOutput(FAILED, altered_row(answered, found, action))
            return
        question = repair_text(asked.prompt.text, found), asked.prompt.system, answered
        yield beam.pvalue.TaggedOutput(_ALTERED, (repair_fingerprint(answered.fingerprint), question))


class _Settle(beam.DoFn):
    """Outputs repaired rows, and as `failed` those whose repair failed or altered one, too."""

    def start_bundle(self) -> None:
        self._rows = 0

    def process(self, asked: Asked) -> Iterator[AnsweredRow | beam.pvalue.TaggedOutput]:
        row = repaired(asked.element, asked.outcome, is_counted=asked.is_first)
        if isinstance(row, FailedRow):
            yield beam.pvalue.TaggedOutput(FAILED, row)
        else:
            self._rows += 1
            yield row

    def finish_bundle(self) -> Iterator[Any]:
        tally = Tally()
        tally.sums["placeholders_repaired"] = self._rows
        yield beam.pvalue.TaggedOutput(_TALLIES, GlobalWindows.windowed_value(tally))
