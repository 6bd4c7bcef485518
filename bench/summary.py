"""Summarises the measurements: spread over the repeats, ratios, targets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from bench.jobs import Job, Target
from bench.measure import Measurement

OURS = "ours"


def is_ours(contender: str) -> bool:
    """Returns whether a contender's name is that of our engine, in any configuration."""
    return contender.partition(",")[0] == OURS


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Minimum, median and maximum of a figure over the repeats."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """Returns the spread of the values; `None` if there are none."""
        ordered = sorted(values)
        return cls(low=ordered[0], middle=median(ordered), high=ordered[-1]) if ordered else None

    def worst_for(self, target: Target) -> float:
        """Returns the worst value of the repeats with respect to the target."""
        return self.high if target.at_most is not None else self.low


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether our engine reached a target in every repeat.

    Attributes:
        job: Letter of the job.
        contender: `ours`, or a configuration of it.
        processes: Number of worker processes.
        target: Target of one figure.
        spread: Spread of that figure; `None` if a run failed or the figure is missing.
    """

    job: str
    contender: str
    processes: int
    target: Target
    spread: Spread | None

    @property
    def is_reached(self) -> bool:
        """Whether the worst repeat reached the target."""
        return self.spread is not None and self.target.is_reached(self.spread.worst_for(self.target))


def spread_of(measurements: Iterable[Measurement], figure: str) -> Spread | None:
    """Returns the spread of one figure over the runs that did not fail; `None` if there are none."""
    return Spread.of(
        measurement.figures[figure]
        for measurement in measurements
        if not measurement.failure and figure in measurement.figures
    )


def is_complete(measurement: Measurement) -> bool:
    """Returns whether a run succeeded with an answer for every row."""
    return not measurement.failure and not measurement.figures.get("lost")


def better_by(job: Job, ours: Sequence[Measurement], others: Sequence[Measurement]) -> Spread | None:
    """Compares the headline figure of our engine with that of another contender, within each repeat.

    Returns:
        Spread of the ratios; above 1, ours is better by that factor. `None` if there is nothing to divide by, or
        if rows were lost, as a run that answers fewer rows is not better.
    """
    others_by_repeat = {other.repeat: other for other in others if is_complete(other)}
    ratios = []
    for own in ours:
        other = others_by_repeat.get(own.repeat)
        if other is None or not is_complete(own):
            continue
        first, second = own.figures.get(job.headline), other.figures.get(job.headline)
        if first and second:
            ratios.append(second / first if job.is_lower_better else first / second)
    return Spread.of(ratios)


def verdicts(jobs: Iterable[Job], measurements: Sequence[Measurement]) -> list[Verdict]:
    """Compares our engine with each target; a failed run reaches no target."""
    by_case: dict[tuple[str, int, str], list[Measurement]] = {}
    for measurement in measurements:
        if is_ours(measurement.contender):
            by_case.setdefault((*measurement.case, measurement.contender), []).append(measurement)
    return [
        Verdict(
            job=job.letter,
            contender=contender,
            processes=processes,
            target=target,
            spread=None if any(run.failure for run in runs) else spread_of(runs, target.figure),
        )
        for job in jobs
        for (letter, processes, contender), runs in by_case.items()
        if letter == job.letter
        for target in job.checked_targets
    ]
