"""A run compared with the earlier ones of its task. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict

from airflow_provider_llmbeam.pipeline.reporting.drift import (
    chi_square,
    length_stability,
    ratio_has_changed,
    stability,
)
from airflow_provider_llmbeam.pipeline.reporting.history import RunSummary, changed_parts, pooled

#: Number of earlier runs whose answers are compared with those of this one, together.
COMPARED_RUNS = 7
_MAX_NAME = 80
_MAX_RUN_NAME = 250


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Figure(_Part):
    """One figure of this run and of the last one, and its mean over the compared runs; `None` if not known."""

    now: float | None
    last: float | None
    mean: float | None


class LabelDrift(_Part):
    """Labels of one field, now and in the compared runs.

    Attributes:
        field: Field of the answer, or `answer` for a short answer without a schema.
        now: Number of answers by label.
        before: The same, summed over the compared runs.
        psi: Population stability index, see `drift.Stability`.
        psi_expected: Mean of the index if nothing has changed.
        chi_square: Pearson's χ².
        degrees_of_freedom: Its degrees of freedom.
    """

    field: str
    now: dict[str, int]
    before: dict[str, int]
    psi: float | None
    psi_expected: float | None
    chi_square: float | None
    degrees_of_freedom: int | None


class Comparison(_Part):
    """This run and the earlier ones.

    Attributes:
        runs: Number of compared runs, at most 7.
        last_run: Name of the last one.
        last_finished_at: Its end, as Unix time.
        figures: `rows`, `failed_ratio`, `refused_ratio`, `empty_ratio`, `cost_usd`, `input_tokens`,
            `output_tokens` and `duration_seconds`; ratios are over rows, that of empty answers over answers.
        failed_ratio_difference: Failed ratio of this run, less that of the compared runs together.
        lengths_psi: Population stability index of the lengths of the answers, in ten groups.
        lengths_psi_expected: Its mean if nothing has changed.
        labels: Labels by field.
        new_models: Versions of the model that the compared runs do not have.
        changes: What is notable, as sentences.
    """

    runs: int
    last_run: str
    last_finished_at: float
    figures: dict[str, Figure]
    failed_ratio_difference: float | None
    lengths_psi: float | None
    lengths_psi_expected: float | None
    labels: list[LabelDrift]
    new_models: list[str]
    changes: list[str]

    @property
    def before(self) -> str:
        """The compared runs in words."""
        return "the last run" if self.runs == 1 else f"the last {self.runs} runs"

    @property
    def line(self) -> str:
        """The comparison as one line of a log."""
        ended = datetime.fromtimestamp(self.last_finished_at, UTC).isoformat(" ", "minutes").removesuffix("+00:00")
        changes = "; ".join(self.changes) or "nothing notable has changed"
        return f"Compared with {self.before}, until {ended} UTC: {changes}."


def compare(now: RunSummary, earlier: tuple[RunSummary, ...]) -> Comparison | None:
    """Compares a run with the last ones before it; `None` without any.

    Args:
        now: This run.
        earlier: Earlier runs, the oldest one first.
    """
    runs = earlier[-COMPARED_RUNS:]
    if not runs:
        return None
    figures = {name: _figure(name, now, runs) for name in _FIGURES}
    rows, failed = sum(run.rows for run in runs), sum(run.failed for run in runs)
    lengths = length_stability(now.lengths, sum((Counter(run.lengths) for run in runs), Counter()))
    labels = [_label_drift(name, now, runs) for name in now.labels]
    known = {model for run in runs for model in run.models}
    new_models = [model[:_MAX_NAME] for model in now.models if model not in known] if known else []
    changes = [*_settings(now, runs[-1]), *(f"model version {model!r} is new" for model in new_models[:3])]
    if ratio_has_changed(now.failed, now.rows, failed, rows):
        changes.append(f"{now.failed / now.rows:.1%} of the rows failed, {failed / rows:.1%} before")
    refused = sum(run.refused for run in runs)
    if ratio_has_changed(now.refused, now.rows, refused, rows):
        changes.append(f"{now.refused / now.rows:.1%} of the answers were refused, {refused / rows:.1%} before")
    if lengths is not None and lengths.is_notable:
        changes.append(f"the lengths of the answers differ (PSI {lengths.psi:.2f})")
    for drift in labels:
        found = stability(drift.now, drift.before)
        if found is not None and found.is_notable:
            changes.append(f"the labels of {drift.field[:_MAX_NAME]!r} differ (PSI {found.psi:.2f})")
    return Comparison(
        runs=len(runs),
        last_run=runs[-1].run[:_MAX_RUN_NAME],
        last_finished_at=runs[-1].finished_at,
        figures=figures,
        failed_ratio_difference=round(now.failed / now.rows - failed / rows, 6) if now.rows and rows else None,
        lengths_psi=None if lengths is None else round(lengths.psi, 4),
        lengths_psi_expected=None if lengths is None else round(lengths.expected, 4),
        labels=labels,
        new_models=new_models,
        changes=changes,
    )


def _settings(now: RunSummary, last: RunSummary) -> Iterator[str]:
    if now.model != last.model:
        yield f"the model was {last.model[:_MAX_NAME]!r} before"
    if changed := changed_parts(now.parts, last.parts):
        yield f"{changed} changed"
    elif now.prompt != last.prompt:
        yield "the prompt or its parameters have changed"


def _label_drift(name: str, now: RunSummary, runs: tuple[RunSummary, ...]) -> LabelDrift:
    before = pooled(runs, name)
    index, test = stability(now.labels[name], before), chi_square(now.labels[name], before)
    return LabelDrift(
        field=name,
        now=now.labels[name],
        before=dict(before),
        psi=None if index is None else round(index.psi, 4),
        psi_expected=None if index is None else round(index.expected, 4),
        chi_square=None if test is None else round(test.statistic, 2),
        degrees_of_freedom=None if test is None else test.degrees_of_freedom,
    )


_FIGURES: dict[str, Callable[[RunSummary], float | None]] = {
    "rows": lambda run: run.rows,
    "failed_ratio": lambda run: run.failed / run.rows if run.rows else None,
    "refused_ratio": lambda run: run.refused / run.rows if run.rows else None,
    "empty_ratio": lambda run: run.empty / (run.rows - run.failed) if run.rows > run.failed else None,
    "cost_usd": lambda run: run.cost_usd,
    "input_tokens": lambda run: run.input_tokens,
    "output_tokens": lambda run: run.output_tokens,
    "duration_seconds": lambda run: run.duration_seconds,
}


def _figure(name: str, now: RunSummary, runs: tuple[RunSummary, ...]) -> Figure:
    value = _FIGURES[name]
    known = [found for run in runs if (found := value(run)) is not None]
    mean = sum(known) / len(known) if known else None
    rounded = [None if each is None else round(each, 6) for each in (value(now), value(runs[-1]), mean)]
    return Figure(now=rounded[0], last=rounded[1], mean=rounded[2])
