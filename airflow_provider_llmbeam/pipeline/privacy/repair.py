"""Repair of an answer in which the model altered a placeholder, by one more request."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows

from airflow_provider_llmbeam.engine.bill import paid_for
from airflow_provider_llmbeam.engine.outcome import Completion, Failure, Outcome
from airflow_provider_llmbeam.pipeline.context import RunContext
from airflow_provider_llmbeam.pipeline.elements import FAILED, AnsweredRow, FailedRow, Request, without_flag
from airflow_provider_llmbeam.pipeline.feature import Results
from airflow_provider_llmbeam.pipeline.further_requests import Ask, Asked
from airflow_provider_llmbeam.pipeline.job_handler import JobHandler
from airflow_provider_llmbeam.pipeline.privacy.placeholder import Returned
from airflow_provider_llmbeam.pipeline.privacy.vault import returned_of
from airflow_provider_llmbeam.pipeline.prompt_of_row import RowPrompts
from airflow_provider_llmbeam.pipeline.reporting.tally import Tally
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.counts import Counts
from airflow_provider_llmbeam.spec.safety import Privacy

_ALTERED, _TALLIES = "altered", "tallies"
#: Origins of answers whose cost is counted with their row.
_COUNTED = ("fresh", "repaired")


def repair_fingerprint(fingerprint: str) -> str:
    """Returns the fingerprint of the repair of a prompt.

    It follows from that of the prompt, whatever was altered: `llmbeam forget` finds both.
    """
    return hashlib.sha256(f"repair of altered placeholders\n{fingerprint}".encode()).hexdigest()


def repair_text(text: str, found: Returned) -> str:
    """Returns the text of a prompt with the request to copy the placeholders.

    Args:
        text: Text of the prompt.
        found: What the first answer has of its placeholders.
    """
    return (
        f"{text}\n\nAn earlier answer to this was refused, as it changed these placeholders: "
        f"{', '.join(found.originals)}\n"
        "Answer again, and copy each placeholder exactly as it is above, from < to >."
    )


def apply_repair(first: AnsweredRow, repair: Outcome, *, is_counted: bool) -> AnsweredRow | FailedRow:
    """Returns the row of an answer that was to be repaired.

    Args:
        first: The row with the answer that has an altered placeholder.
        repair: Outcome of the further request.
        is_counted: Whether that request was made in this run, and is counted with this row.
    """
    paid: list[Outcome] = [first.completion, repair]
    if is_counted != (first.origin in _COUNTED):  # what other rows or earlier runs have counted is not this row's
        paid = [repair] if is_counted else [first.completion]
    if isinstance(repair, Failure):
        message = f"the answer had an altered placeholder, and its repair failed: {repair.message}"
        return _failed(first, replace(repair, message=message), paid, is_counted=is_counted)
    answer = replace(
        repair,
        **paid_for(paid),
        repairs=first.completion.repairs + 1 + repair.repairs,
        sent_at=min(each.sent_at for each in paid if isinstance(each, Completion)),
    )
    answered = replace(first, completion=answer, origin="repaired" if is_counted else first.origin)
    if not (found := returned_of(answered)).altered:
        return answered
    return altered_row(answered, found, "a repair was asked for", paid, is_counted=is_counted)


def altered_row(
    answered: AnsweredRow, found: Returned, action: str, paid: Sequence[Outcome] = (), *, is_counted: bool = False
) -> FailedRow:
    """Returns the failed row of an answer with an altered placeholder.

    Args:
        answered: The row.
        found: What the answer has of the placeholders.
        action: What was done because of it, for the message.
        paid: Outcomes whose cost is that of the failure; by default that of the answer.
        is_counted: Whether a further request of this run is counted with this row.
    """
    answer = answered.completion
    failure = Failure(
        kind="invalid_output",
        message=(
            f"the model altered a placeholder of personal data in its answer: {found.first_altered!r}; {action}. "
            "The answer stays in the journal, so that it is not paid again"
        ),
        http_status=200,
        answered_at=answer.answered_at,
        began_at=answer.sent_at,
        failed_at=answer.answered_at,
        service_tier=answer.service_tier,
    )
    return _failed(answered, failure, paid or [answer], is_counted=is_counted)


def _failed(row: AnsweredRow, failure: Failure, paid: Sequence[Outcome], *, is_counted: bool) -> FailedRow:
    origin = "fresh" if is_counted or row.origin in _COUNTED else row.origin
    return FailedRow(row.row, replace(failure, **paid_for(paid)), origin)


def settle_altered(results: Results, spec: JobSpec, privacy: Privacy, context: RunContext) -> Results:
    """Applies `privacy.on_altered` to the answers of a job.

    Args:
        results: The answers, not yet restored.
        spec: The job.
        privacy: Its `safety.privacy`.
        context: Its run, whose budget is also that of the repairs.
    """
    if privacy.on_altered == "keep":
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
        asked = self._prompts.render(without_flag(answered.row))
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
        row = apply_repair(asked.element, asked.outcome, is_counted=asked.is_first)
        if isinstance(row, FailedRow):
            yield beam.pvalue.TaggedOutput(FAILED, row)
        else:
            self._rows += 1
            yield row

    def finish_bundle(self) -> Iterator[Any]:
        tally = Tally()
        tally.sums["placeholders_repaired"] = self._rows
        yield beam.pvalue.TaggedOutput(_TALLIES, GlobalWindows.windowed_value(tally))
