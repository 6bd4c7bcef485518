"""Summaries of the last runs of a task, in one file that all its runs share.

A run is named after its Dag run, and its directories may be, so that nothing else of the run before is found.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from airflow_provider_llmbeam.engine.outcome import REFUSED
from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.reporting.report import Report
from airflow_provider_llmbeam.spec.identity import identity
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.counts import Counts, usd

_log = logging.getLogger("llmbeam")

#: Number of runs that are kept.
MAX_RUNS = 30


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class RunSummary(_Part):
    """A run in short. Anybody who may write to the directory may have written it.

    Attributes:
        run: Name of the run: a run that is repeated replaces its summary.
        finished_at: Unix time.
        model: Type and name of the model.
        parts: Digest of each part of the prompt and of the parameters of the text, by the name of its field.
        rows: Number of rows read.
        failed: Number of failed rows.
        refused: Number of those whose answers were received and cannot be used.
        empty: Number of answers that say nothing.
        cost_usd: Cost in US dollars; `None` if no price is known.
        paid: Number of rows whose answers this run has paid for.
        input_tokens: Billed input tokens.
        output_tokens: Billed output tokens.
        duration_seconds: Duration of the run and of its batch inference, in seconds.
        models: Number of answers by version of the model.
        lengths: Number of answers by class of their length, which its least length names.
        labels: Number of answers by label, by field.
    """

    run: str
    finished_at: float = Field(ge=0)
    model: str
    parts: dict[str, str]
    rows: int = Field(ge=0)
    failed: int = Field(ge=0)
    refused: int = Field(ge=0)
    empty: int = Field(ge=0)
    cost_usd: float | None
    paid: int = Field(ge=0)
    input_tokens: int = Field(ge=0)
    output_tokens: int = Field(ge=0)
    duration_seconds: float = Field(ge=0)
    models: dict[str, int]
    lengths: dict[int, int]
    labels: dict[str, dict[str, int]]


class History(_Part):
    """Summaries of the last runs, the oldest one first."""

    version: int = 1
    runs: tuple[RunSummary, ...] = ()

    def without(self, run: str) -> tuple[RunSummary, ...]:
        """Returns the summaries of all other runs."""
        return tuple(each for each in self.runs if each.run != run)

    def plus(self, summary: RunSummary) -> History:
        """Returns the history with one more run, which replaces an earlier summary of the same one."""
        runs = sorted((*self.without(summary.run), summary), key=lambda each: each.finished_at)
        return History(runs=tuple(runs[-MAX_RUNS:]))


def history_uri(spec: JobSpec) -> str:
    """Returns the address of the history of a task: below `state_uri`, or below the files sink."""
    return f"{spec.paths.shared_uri}history/{identity(spec.owner or spec.name, spec.deployment)}.json"


def run_of(spec: JobSpec, started_at: float) -> str:
    """Returns the name of a run: that of the job with Airflow, else with its start, as names repeat then."""
    return spec.name if spec.owner else f"{spec.name} {started_at:.0f}"


def summary_of(spec: JobSpec, report: Report) -> RunSummary:
    """Returns what later runs of the task are compared with."""
    answers, failed = report.answers, report.dead_letter_by_kind
    return RunSummary(
        run=run_of(spec, report.started_at),
        finished_at=report.finished_at,
        model=report.model,
        parts=part_digests(spec),
        rows=report.rows.read,
        failed=report.rows.dead_letter,
        refused=sum(failed.get(kind, 0) for kind in REFUSED),
        empty=answers.empty,
        cost_usd=report.cost_usd,
        paid=sum(report.origins.get(origin, 0) for origin in ("fresh", "repaired", "batch")),
        input_tokens=report.tokens.input,
        output_tokens=report.tokens.output,
        duration_seconds=round(report.finished_at - (report.batch_began_at or report.started_at), 3),
        models=answers.models,
        lengths={each.characters: each.answers for each in answers.lengths},
        labels=answers.labels,
    )


def part_digests(spec: JobSpec) -> dict[str, str]:
    """Returns a digest of each part that decides the answers besides the rows and the model, by its field."""
    parts = {f"prompt.{name}": getattr(spec.prompt, name) for name in ("template", "system", "output_schema")}
    parts["generation"] = spec.generation.decisive()
    plain = {name: json.dumps(value, sort_keys=True).encode() for name, value in parts.items()}
    return {name: hashlib.sha256(value).hexdigest()[:12] for name, value in plain.items()}


def changed_parts(now: Mapping[str, str], before: Mapping[str, str]) -> str:
    """Returns the fields whose digests differ, for a message; empty if none is known to."""
    names = [f"`{name}`" for name, digest in now.items() if before.get(name, digest) != digest]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def read_history(spec: JobSpec, *, is_needed: bool = False) -> History:
    """Returns the history; an empty one if there is none that can be read: the report is complete without it.

    Args:
        spec: The job.
        is_needed: Whether the answers are published only if they are like the earlier ones.

    Raises:
        JobFailedError: It is needed, and the file cannot be read.
    """
    uri = history_uri(spec)
    try:
        return _decode(storage.read(uri)) if storage.exists(uri) else History()
    except Exception as error:
        if is_needed:
            raise JobFailedError(
                f"The answers cannot be compared with those of earlier runs, as {uri!r} cannot be read: {error}. "
                "`alerts.on_drift` is 'fail', so no answer was published, and the previous output was kept. The "
                f"answers are in {spec.paths.journal_uri!r}: a retry compares and publishes them, and sends "
                "nothing."
            ) from error
        _log.warning("This run is not compared with earlier ones, as %r cannot be read: %s", uri, error)
        return History()


def add_to_history(spec: JobSpec, summary: RunSummary) -> None:
    """Adds a run to the history; an error is not that of the job. Runs that end at the same time are all added."""
    uri = history_uri(spec)

    def add(content: bytes | None) -> bytes:
        history = History() if content is None else _decode(content)
        return history.plus(summary).model_dump_json().encode()

    try:
        storage.change(uri, add)
    except Exception as error:  # noqa: BLE001 - the output is published
        _log.warning("Later runs are not compared with this one, as %r cannot be written: %s", uri, error)


def watch_known_rows(spec: JobSpec) -> Callable[[Counts], None]:
    """Returns a function that logs one line when it is called with counts of a running job that sends requests.

    At the first request of a job that runs in one process, all rows have been looked up in the journal, unless the
    rows are turns of conversations, which are looked up one after the other.
    """
    is_told = spec.conversation is not None

    def watch(counts: Counts) -> None:
        nonlocal is_told
        if is_told or not counts.requests or counts.done >= counts.rows:
            return
        is_told = True
        _log.info("%s", known_rows_line(spec, counts, read_history(spec).runs))

    return watch


def known_rows_line(spec: JobSpec, counts: Counts, runs: Sequence[RunSummary]) -> str:
    """Returns the line: how many rows are answered already, what the others cost, and what has changed.

    Args:
        spec: The job.
        counts: Its counts at the first request.
        runs: Its last runs, the oldest first.
    """
    known = f"{counts.resumed:,} of {counts.rows:,} rows are answered already"
    left = counts.rows - counts.resumed
    if not left or not runs:
        return f"{known}."
    last, model = runs[-1], f"{spec.model.type}:{spec.model.name}"
    prompts = left - counts.duplicates - counts.failed
    known = f"{known}; the other {left:,} are sent{f' as {prompts:,} prompts' if prompts != left else ''}"
    if last.model != model:
        return (
            f"{known}, as the model was {last.model!r} in the last run, whose answers are not used for {model!r}."
        )
    if last.cost_usd and last.paid:
        known += f", for about {usd(last.cost_usd / last.paid * prompts)} by the last run's cost of an answer"
    if changed := changed_parts(part_digests(spec), last.parts):
        return f"{known}: {changed} changed since then."
    return f"{known}."


def mean_output(spec: JobSpec) -> int | None:
    """Returns the mean output tokens of an answer of the last run that was billed for some; `None` without one."""
    means = [round(run.output_tokens / run.paid) for run in read_history(spec).runs if run.paid]
    return max(means[-1], 1) if means else None


def _decode(content: bytes) -> History:
    try:
        return History.model_validate_json(content)
    except ValidationError as error:
        _log.warning("The history of earlier runs is not valid, and starts again: %s", error.errors()[0]["msg"])
        return History()
