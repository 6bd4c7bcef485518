"""Reuse of answers from the journal, and one request per distinct prompt."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import apache_beam as beam
from apache_beam.io import fileio

from airflow_provider_llmbeam.engine.journal.entry import Entry, read_segment
from airflow_provider_llmbeam.engine.journal.journal import better
from airflow_provider_llmbeam.engine.outcome import Completion, Failure, Outcome
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.answer_form import AnswerForm, answer_form, oldest_useful_at
from airflow_provider_llmbeam.pipeline.context import NO_RUN, RunContext
from airflow_provider_llmbeam.pipeline.elements import (
    FAILED,
    AnsweredRow,
    FailedRow,
    Origin,
    RenderedRow,
    Request,
    Row,
)
from airflow_provider_llmbeam.pipeline.reporting.metrics import CountingDoFn
from airflow_provider_llmbeam.pipeline.transforms.keys import refuse_duplicates
from airflow_provider_llmbeam.spec.job import JobSpec

_log = logging.getLogger(__name__)

REUSED = "reused"
#: Number of characters of an error of batch inference that are quoted.
_QUOTED = 500


def reuse(
    root: beam.Pipeline,
    rendered: beam.PCollection,
    spec: JobSpec,
    duplicate_keys: beam.pvalue.AsList | None,
    context: RunContext,
) -> tuple[beam.PCollection, list[beam.PCollection], list[beam.PCollection]]:
    """Separates rows with an answer in the journal, or a refused one, from rows that need a request.

    A first run has no journal and no join; answers of the same run are found by their batch.

    Args:
        root: The pipeline.
        rendered: `(fingerprint, RenderedRow)`.
        spec: The job.
        duplicate_keys: Duplicate keys, which fail the job here, before anything is sent.
        context: Its run.

    Returns:
        One `Request` per fingerprint, with all its rows; and the `AnsweredRow`s and the `FailedRow`s from the
        journal, each in zero or one collections.
    """
    guard = () if duplicate_keys is None else (duplicate_keys,)
    if not any(map(storage.has_match, _patterns(spec))):
        groups = rendered | "ByFingerprint" >> beam.GroupByKey()
        return groups | "MakeRequest" >> beam.ParDo(MakeRequest(context), *guard), [], []
    decided = (
        {"rows": rendered, "journal": read_journal(root, spec, context)}
        | "ByFingerprint" >> beam.CoGroupByKey()
        | "Reuse"
        >> beam.ParDo(Reuse(spec.name, answer_form(spec, context), context), *guard).with_outputs(
            REUSED, FAILED, main="requests"
        )
    )
    return decided["requests"], [decided[REUSED]], [decided[FAILED]]


def read_journal(root: beam.Pipeline, spec: JobSpec, context: RunContext) -> beam.PCollection:
    """Reads the journal of a job in the graph, as `(fingerprint, (job, outcome))`; it may be empty.

    Args:
        root: The pipeline.
        spec: The job.
        context: Its run. Answers that are too old for it are passed over.
    """
    oldest_at = oldest_useful_at(spec, context.started_at)
    return (
        root
        | "JournalPatterns" >> beam.Create(_patterns(spec))
        | "MatchJournal" >> fileio.MatchAll(fileio.EmptyMatchTreatment.ALLOW)
        # Answers are older than the last write of their segment, so an old segment has only old answers.
        | "Recent" >> beam.Filter(lambda metadata: metadata.last_updated_in_seconds >= oldest_at)
        | "JournalEntries" >> beam.FlatMap(lambda metadata: _keyed_entries(metadata.path, oldest_at))
    )


def journal_entries(spec: JobSpec, oldest_at: float) -> Iterator[Entry]:
    """Reads the journal of a job, without a graph; it is empty in a first run.

    Its entries may also be those of other jobs, and their answers of another form than this job's.
    """
    for pattern in _patterns(spec):
        for metadata in storage.match_metadata(pattern):
            if metadata.last_updated_in_seconds >= oldest_at:
                yield from _entries(metadata.path, oldest_at)


def _patterns(spec: JobSpec) -> list[str]:
    return [f"{uri}*.jsonl" for uri in spec.paths.journal_uris]


def _keyed_entries(uri: str, oldest_at: float) -> Iterator[tuple[str, tuple[str, Outcome]]]:
    for entry in _entries(uri, oldest_at):
        yield entry.fingerprint, (entry.job, entry.outcome)


def _entries(uri: str, oldest_at: float) -> Iterator[Entry]:
    for entry in read_segment(uri, storage.open):
        if entry.outcome.answered_at >= oldest_at:
            yield entry


@beam.typehints.with_output_types(Request)
class MakeRequest(CountingDoFn):
    """Makes one `Request` for all rows of a fingerprint."""

    def process(
        self,
        group: tuple[str, Iterable[RenderedRow]],
        duplicate_keys: list[bytes] = [],  # noqa: B006 - never changed
    ) -> Iterator[Request]:
        """Processes the rows of one fingerprint."""
        refuse_duplicates(duplicate_keys)
        fingerprint, found = group
        rows: list[Row] = []
        prompt: Prompt | None = None
        for row, text, system, media, media_tokens in found:
            rows.append(row)
            prompt = prompt or Prompt(text, system, media, media_tokens)
        if prompt is not None:
            if len(rows) > 1:
                self.count("duplicates", len(rows) - 1)
            yield Request(fingerprint, tuple(rows), prompt)


class EarlierOutcomes:
    """Chooses the outcome of a fingerprint that the journal has.

    Its origin is `batch` for the batch inference of this run, else `resumed` for this job, else `cached`.

    Args:
        job: Name of the job.
        form: Form of its answers; others are passed over.
        batch_since: Unix time at which the batch inference of this run began; `None` without any.
    """

    def __init__(self, job: str, form: AnswerForm, batch_since: float | None = None) -> None:
        self._job = job
        self._form = form
        self._batch_since = batch_since
        self._has_warned = False

    def of(self, fingerprint: str, journal: Iterable[tuple[str, Outcome]]) -> tuple[Outcome, Origin] | None:
        """Returns the outcome that counts and its origin, or `None`."""
        earlier = self._usable(fingerprint, journal)
        if not earlier:
            return None
        # An answer of any job is better than a refused one.
        answers = {job: outcome for job, outcome in earlier.items() if isinstance(outcome, Completion)}
        outcomes = answers or earlier
        if self._job not in outcomes:
            return max(outcomes.values(), key=_answered_at), "cached"
        outcome = outcomes[self._job]
        return outcome, "batch" if self._is_of_batch(outcome) else "resumed"

    def batch_error(self, journal: Iterable[tuple[str, Outcome]]) -> str | None:
        """Returns the error of a prompt that the batch inference of this run has failed; `None` without one."""
        errors = [each for job, each in journal if job == self._job and self._is_of_batch(each)]
        last = max(errors, key=_answered_at, default=None)
        return f"{last.kind}: {last.message[:_QUOTED]}" if isinstance(last, Failure) else None

    def _is_of_batch(self, outcome: Outcome) -> bool:
        since = self._batch_since
        return since is not None and outcome.service_tier == "batch" and outcome.answered_at >= since

    def _usable(self, fingerprint: str, journal: Iterable[tuple[str, Outcome]]) -> dict[str, Outcome]:
        found: dict[str, Outcome] = {}
        for job, outcome in journal:
            if self._form.accepts(outcome):
                found[job] = better(outcome, found.get(job))
            elif not isinstance(outcome, Failure) and not self._has_warned:
                self._has_warned = True
                _log.warning(
                    "The journal has an answer of job %r to prompt %s that is none of this job's form; it and "
                    "any other one are passed over, and their prompts are sent again.",
                    job,
                    fingerprint,
                )
        return found


class Reuse(MakeRequest):
    """Uses earlier outcomes for the rows of a fingerprint, or makes one `Request`.

    Outputs one `Request` for all rows of a fingerprint without an outcome; and `reused`, the answered rows, or
    `failed`, those with a refused answer.

    Args:
        job: See `EarlierOutcomes`.
        form: See `EarlierOutcomes`.
        context: The run.
    """

    def __init__(self, job: str, form: AnswerForm, context: RunContext = NO_RUN) -> None:
        super().__init__(context)
        self._earlier = EarlierOutcomes(job, form, context.batch_since)

    def process(
        self,
        group: tuple[str, Any],
        duplicate_keys: list[bytes] = [],  # noqa: B006 - never changed
    ) -> Iterator[Any]:
        """Processes one fingerprint."""
        fingerprint, found = group
        journal = list(found["journal"])
        if (known := self._earlier.of(fingerprint, journal)) is None:
            error = self._earlier.batch_error(journal)
            for request in super().process((fingerprint, found["rows"]), duplicate_keys):
                yield replace(request, batch_error=error)
            return
        refuse_duplicates(duplicate_keys)
        outcome, origin = known
        for row, *_ in found["rows"]:
            if isinstance(outcome, Completion):
                self.count("resumed")
                yield beam.pvalue.TaggedOutput(REUSED, AnsweredRow(row, fingerprint, outcome, origin))
            else:
                self.count("failed")
                yield beam.pvalue.TaggedOutput(FAILED, FailedRow(row, outcome, origin))


def _answered_at(outcome: Outcome) -> float:
    return outcome.answered_at
