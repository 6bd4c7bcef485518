"""Summaries of the last runs of a task, in one file that all its runs share, and this run compared with them.

A run is named after its Dag run, and its directories may be, so that nothing else of the run before is found.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from airflow_provider_llmbeam.engine.outcome import REFUSED
from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.spec.identity import identity
from airflow_provider_llmbeam.spec.job import JobSpec

if TYPE_CHECKING:
    from airflow_provider_llmbeam.pipeline.reporting.report import Report

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
        prompt: Digest of the prompt and of the parameters of the text.
        parts: Digest of each part of both, by the name of its field; empty in summaries of earlier versions.
        rows: Number of rows read.
        failed: Number of failed rows.
        refused: Number of those whose answers were received and cannot be used.
        empty: Number of answers that say nothing.
        cost_usd: Cost in US dollars; `None` if no price is known.
        paid: Number of rows whose answers this run has paid for; `None` in summaries of earlier versions.
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
    prompt: str
    parts: dict[str, str] = {}
    rows: int = Field(ge=0)
    failed: int = Field(ge=0)
    refused: int = Field(ge=0)
    empty: int = Field(ge=0)
    cost_usd: float | None
    paid: int | None = Field(default=None, ge=0)
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
        prompt=prompt_digest(spec),
        parts=part_digests(spec),
        rows=report.rows.read,
        failed=report.rows.dead_letter,
        refused=sum(failed.get(kind, 0) for kind in REFUSED),
        empty=answers.empty,
        cost_usd=report.cost_usd,
        paid=sum(report.origins.get(origin, 0) for origin in ("fresh", "repaired", "batch")),
        input_tokens=report.tokens.input,
        output_tokens=report.tokens.output,
        duration_seconds=round(max(0.0, report.finished_at - (report.batch_began_at or report.started_at)), 3),
        models=answers.models,
        lengths={each.characters: each.answers for each in answers.lengths},
        labels=answers.labels,
    )


def part_digests(spec: JobSpec) -> dict[str, str]:
    """Returns a digest of each part that decides the answers besides the rows and the model, by its field."""
    parts = {f"prompt.{name}": getattr(spec.prompt, name) for name in ("template", "system", "output_schema")}
    parts["generation"] = spec.generation.decisive()
    return {name: _digest(value) for name, value in parts.items()}


def changed_parts(now: Mapping[str, str], before: Mapping[str, str]) -> str:
    """Returns the fields whose digests differ, for a message; empty if none is known to."""
    names = [f"`{name}`" for name, digest in now.items() if before.get(name, digest) != digest]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def prompt_digest(spec: JobSpec) -> str:
    """Returns a digest of all these parts."""
    return _digest(part_digests(spec))


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


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
        return _decoded(storage.read(uri)) if storage.exists(uri) else History()
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

    def added(content: bytes | None) -> bytes:
        history = History() if content is None else _decoded(content)
        return history.plus(summary).model_dump_json().encode()

    try:
        storage.change(uri, added)
    except Exception as error:  # noqa: BLE001 - the output is published
        _log.warning("Later runs are not compared with this one, as %r cannot be written: %s", uri, error)


def _decoded(content: bytes) -> History:
    try:
        return History.model_validate_json(content)
    except ValidationError as error:
        _log.warning("The history of earlier runs is not valid, and starts again: %s", error.errors()[0]["msg"])
        return History()


def pooled(runs: tuple[RunSummary, ...], name: str) -> Counter[str]:
    """Returns the labels of a field, summed over runs."""
    total: Counter[str] = Counter()
    for run in runs:
        total.update(run.labels.get(name, {}))
    return total
