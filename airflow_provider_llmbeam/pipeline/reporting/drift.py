"""A run compared with the earlier ones of its task, and how much two distributions of answers differ. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from airflow_provider_llmbeam.pipeline.reporting.history import RunSummary, changed_parts
from airflow_provider_llmbeam.pipeline.reporting.report import Figure, LabelDrift, RunComparison

#: Number of earlier runs whose answers are compared with those of this one, together.
COMPARED_RUNS = 7
_MAX_NAME = 80
_MAX_RUN_NAME = 250
#: Number of groups of lengths that are compared.
LENGTH_GROUPS = 10
#: Count that stands for none, as the logarithm of zero does not exist.
_NONE = 0.5


class Stability(NamedTuple):
    """A population stability index.

    Attributes:
        psi: Σ (p − q) · ln(p / q) over all groups, where p and q are their shares now and before. Conventionally
            below 0.1 nothing has changed, and from 0.25 on a lot has.
        expected: Its mean if both are samples of the same distribution: (groups − 1) · (1/n + 1/m). An index that
            is not well above it says nothing.

    Source: Yurdakul and Naranjo, Statistical properties of the population stability index, 2020, section 3.
    """

    psi: float
    expected: float

    @property
    def is_notable(self) -> bool:
        """Whether it is at least 0.1, and three times what chance alone gives."""
        return self.psi >= 0.1 and self.psi > 3 * self.expected


def compare_runs(now: RunSummary, earlier: tuple[RunSummary, ...]) -> RunComparison | None:
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
    return RunComparison(
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


def stability(now: Mapping[str, int], before: Mapping[str, int]) -> Stability | None:
    """Returns the population stability index of two counts of values; `None` if one of them is empty."""
    names = sorted(now.keys() | before.keys())
    return _stability([now.get(name, 0) for name in names], [before.get(name, 0) for name in names])


def length_stability(now: Mapping[int, int], before: Mapping[int, int]) -> Stability | None:
    """Returns the same for two counts of classes of lengths, in ten groups that were equally frequent before."""
    total, seen = sum(before.values()), 0
    groups: dict[int, int] = {}
    for number in sorted(now.keys() | before.keys()):
        groups[number] = min(LENGTH_GROUPS * seen // total, LENGTH_GROUPS - 1) if total else 0
        seen += before.get(number, 0)
    sums = [[0] * LENGTH_GROUPS, [0] * LENGTH_GROUPS]
    for counts, added in zip((now, before), sums, strict=True):
        for number, count in counts.items():
            added[groups[number]] += count
    used = [index for index in range(LENGTH_GROUPS) if sums[0][index] or sums[1][index]]
    return _stability(*([added[index] for index in used] for added in sums))


def ratio_has_changed(failed: int, rows: int, failed_before: int, rows_before: int) -> bool:
    """Whether two ratios differ by at least one percentage point, and by three standard errors."""
    if not rows or not rows_before:
        return False
    difference = abs(failed / rows - failed_before / rows_before)
    pooled = (failed + failed_before) / (rows + rows_before)
    error = math.sqrt(pooled * (1 - pooled) * (1 / rows + 1 / rows_before))
    return difference >= 0.01 and difference > 3 * error


def _settings(now: RunSummary, last: RunSummary) -> Iterator[str]:
    if now.model != last.model:
        yield f"the model was {last.model[:_MAX_NAME]!r} before"
    if changed := changed_parts(now.parts, last.parts):
        yield f"{changed} changed"


def _label_drift(name: str, now: RunSummary, runs: tuple[RunSummary, ...]) -> LabelDrift:
    before = sum((Counter(run.labels.get(name, {})) for run in runs), Counter[str]())
    index = stability(now.labels[name], before)
    return LabelDrift(
        field=name,
        now=now.labels[name],
        before=dict(before),
        psi=None if index is None else round(index.psi, 4),
        psi_expected=None if index is None else round(index.expected, 4),
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


def _stability(now: Sequence[int], before: Sequence[int]) -> Stability | None:
    rows, rows_before = sum(now), sum(before)
    if not rows or not rows_before:
        return None
    psi = 0.0
    for count, count_before in zip(now, before, strict=True):
        share, share_before = (count or _NONE) / rows, (count_before or _NONE) / rows_before
        psi += (share - share_before) * math.log(share / share_before)
    return Stability(psi, (len(now) - 1) * (1 / rows + 1 / rows_before))
