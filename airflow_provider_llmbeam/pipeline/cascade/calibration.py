"""Chooses the thresholds of a cascade from draws that every stage and `model` have answered. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from airflow_provider_llmbeam.pipeline.cascade.binomial import lower_bound, lower_tails, upper_bound

#: Number of combinations of thresholds that are looked at, and of thresholds of one stage.
_COMBINATIONS = 100_000
_THRESHOLDS = 500
#: Number of points of the curve.
_POINTS = 50

_Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StageAnswer:
    """Answer of a stage to a prompt.

    Attributes:
        score: Score of the answer: the higher, the more it can be trusted.
        agrees: Whether it agrees with the answer of `model`; `False` if that is missing or unknown.
        label: Class that the stage predicts; `None` for a job without classes.
    """

    score: float
    agrees: bool = False
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Draw:
    """A prompt that was drawn. One that was drawn several times is as many of these.

    Attributes:
        stages: Answers of the stages; `None` for a stage that failed, whose row escalates.
        is_answered: Whether `model` has answered it. If not, the draw counts as disagreement, whatever is kept.
        label: Class of the answer of `model`; `None` for a job without classes, or without that answer.
    """

    stages: tuple[StageAnswer | None, ...]
    is_answered: bool = True
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Costs:
    """Mean cost of a row that is asked, in US dollars or any other unit.

    Attributes:
        stages: Cost at each stage.
        model: Cost at `model`.
    """

    stages: tuple[float, ...]
    model: float


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True)


class ClassAgreement(_Value):
    """Agreement among the draws of one class, by the label of `model`.

    Attributes:
        label: The class.
        draws: Number of test draws.
        agreement: Share of them whose final answer agrees.
        low: Lower end of the one-sided interval at the confidence of the cascade.
    """

    label: str
    draws: int
    agreement: float
    low: float


class CurvePoint(_Value):
    """Thresholds that were considered.

    Attributes:
        thresholds: Smallest score that each stage keeps; `None` for a stage that is not asked.
        escalated: Share of the test draws that `model` answers.
        agreement: Share of the test draws whose final answer agrees with that of `model`.
        low: Lower end of the one-sided interval of the agreement.
        is_certified: Whether the test holds for these thresholds and all before them.
    """

    thresholds: tuple[float | None, ...]
    escalated: float
    agreement: float
    low: float
    is_certified: bool


class Calibration(_Value):
    """Thresholds of a cascade, and what is known of them. JSON by `model_dump_json`.

    Attributes:
        thresholds: Smallest score that each stage keeps; `None` for a stage that is not asked. All `None`: `model`
            answers everything.
        reason: Why no stage is used; empty if one is.
        guaranteed: Classes whose agreement is guaranteed; `None` for a job without classes. An answer of a stage
            with another label escalates.
        not_guaranteed: Other classes of the draws: too few of them to certify.
        draws: Number of draws; half of them chose the thresholds, the others tested them.
        tested: Number of draws that tested them.
        agreement: Share of these whose final answer agrees with that of `model`.
        low: Lower end of the one-sided interval of the agreement, at the confidence of the cascade.
        high: Upper end, likewise one-sided.
        classes: Agreement by class, for those that are guaranteed.
        kept: Share of the test draws that keep the answer of each stage.
        escalated: Share of the test draws that `model` answers.
        cost_per_row: Mean cost of a row with these thresholds.
        cost_per_row_by_model: Mean cost of a row that `model` answers alone.
        curve: Agreement against the escalated share, in the order of the tests, from everything by `model` on.
    """

    thresholds: tuple[float | None, ...]
    reason: str = ""
    guaranteed: tuple[str, ...] | None = None
    not_guaranteed: tuple[str, ...] = ()
    draws: int
    tested: int
    agreement: float
    low: float
    high: float
    classes: tuple[ClassAgreement, ...] = ()
    kept: tuple[float, ...]
    escalated: float
    cost_per_row: float
    cost_per_row_by_model: float
    curve: tuple[CurvePoint, ...] = ()

    @property
    def asked(self) -> tuple[int, ...]:
        """Stages that are asked, in order."""
        return tuple(index for index, threshold in enumerate(self.thresholds) if threshold is not None)


def calibrate(
    draws: Sequence[Draw],
    costs: Costs,
    *,
    target_agreement: float,
    confidence: float,
    class_agreement: float,
) -> Calibration:
    """Chooses the thresholds that save most, among those whose agreement is certain enough.

    P(agreement of all final answers with `model` ≥ `target_agreement`, and of each guaranteed class ≥
    `class_agreement`) ≥ `confidence`, over the draws. The first half of them chooses: thresholds, their order, and
    the classes that are guaranteed. The second half tests them in this order, until a test fails; each test is an
    exact binomial one for all shares at the level 1 - `confidence`, and needs no correction for the number of
    shares (an intersection-union test) or of thresholds (a fixed sequence).

    Args:
        draws: The draws, in the order in which they were drawn; their number was fixed before.
        costs: Costs of the stages and of `model`; without prices 0 and 1, so that escalated rows count.
        target_agreement: Smallest share of rows whose final answer agrees.
        confidence: Probability of all this together.
        class_agreement: Smallest share for the rows of each class.
    """
    choosing, testing = draws[: len(draws) // 2], draws[len(draws) // 2 :]
    guaranteed = _guaranteed_classes(choosing, class_agreement, confidence)
    search = _Search(choosing, costs, guaranteed, (target_agreement, class_agreement))
    path = search.find_path()
    outcomes = search.count(testing)
    passes = outcomes.p_values(target_agreement, class_agreement).ravel()[path] <= 1 - confidence
    steps = len(path) if passes.all() else int(np.argmin(passes))
    return _describe(search, outcomes, path, steps, draws, confidence)


def find_reason_against(costs: Costs, *, rows: int, sample_rows: int) -> str:
    """Returns why a cascade saves less than its calibration costs, even if the cheapest stage answers all; or "".

    It is asked before anything is sent: what a calibration has cost is no reason against the use of its result.

    Args:
        costs: Expected costs of a row.
        rows: Number of rows that have no answer yet.
        sample_rows: Number of draws.
    """
    left = max(rows - sample_rows, 0)
    saving, spent = left * (costs.model - min(costs.stages)), sample_rows * sum(costs.stages)
    if saving > spent:
        return ""
    if not left:
        return f"the sample of {sample_rows:,} draws is not smaller than the {rows:,} rows"
    return (
        f"the cascade saves at most {saving:.2f} on {left:,} rows, and its calibration with {sample_rows:,} draws "
        f"costs {spent:.2f}"
    )


def _guaranteed_classes(
    choosing: Sequence[Draw], class_agreement: float, confidence: float
) -> tuple[str, ...] | None:
    """Returns the classes that have enough draws; `None` without classes."""
    counts = Counter(draw.label for draw in choosing if draw.label is not None)
    if not counts:
        return None
    needed = math.log(1 - confidence) / math.log(class_agreement)
    # The other half has fewer by more than two standard deviations of the difference in 2 % of the cases.
    return tuple(sorted(label for label, count in counts.items() if count - 2 * math.sqrt(2 * count) >= needed))


@dataclass(frozen=True, slots=True)
class _Outcomes:
    """What becomes of draws, for each combination of thresholds: arrays with an axis for each stage.

    Attributes:
        draws: Number of draws.
        kept: Number of draws that keep the answer of each stage.
        disagreements: Number of draws whose final answer disagrees.
        class_draws: Number of draws of each guaranteed class.
        class_disagreements: Number of these whose final answer disagrees.
    """

    draws: int
    kept: tuple[_Counts, ...]
    disagreements: _Counts
    class_draws: tuple[int, ...]
    class_disagreements: tuple[_Counts, ...]

    def p_values(self, target_agreement: float, class_agreement: float) -> NDArray[np.float64]:
        """Returns the largest p-value of the hypotheses that a share is below its bound."""
        worst: NDArray[np.float64] = lower_tails(self.draws, 1 - target_agreement)[self.disagreements]
        for draws, disagreements in zip(self.class_draws, self.class_disagreements, strict=True):
            np.maximum(worst, lower_tails(draws, 1 - class_agreement)[disagreements], out=worst)
        return worst

    def cost(self, costs: Costs) -> NDArray[np.float64]:
        """Returns the mean cost of a row."""
        shape = self.disagreements.shape
        left, cost = np.full(shape, self.draws), np.zeros(shape)
        for stage, kept in enumerate(self.kept):
            is_asked = np.arange(shape[stage]).reshape(_along(stage, len(shape))) > 0
            cost = cost + is_asked * left * costs.stages[stage]
            left = left - kept
        mean: NDArray[np.float64] = (cost + left * costs.model) / self.draws
        return mean


class _Search:
    """Combinations of thresholds. Number 0 of a stage is that it is not asked; then they descend.

    Args:
        choosing: Draws that choose.
        costs: Costs of the stages and of `model`.
        guaranteed: Classes whose agreement is guaranteed; `None` without classes.
        targets: Smallest agreement of all draws, and of those of a class.
    """

    def __init__(
        self,
        choosing: Sequence[Draw],
        costs: Costs,
        guaranteed: tuple[str, ...] | None,
        targets: tuple[float, float],
    ) -> None:
        self.costs, self.guaranteed = costs, guaranteed
        self._choosing, self.targets = choosing, targets
        stages = len(costs.stages)
        size = min(int(_COMBINATIONS ** (1 / stages)) - 1, _THRESHOLDS)
        self.thresholds = [_quantiles(self._scores(choosing, stage), size) for stage in range(stages)]

    def find_path(self) -> NDArray[np.intp]:
        """Returns combinations, the safest first; each costs less than all before it."""
        outcomes = self.count(self._choosing)
        cost, risk = outcomes.cost(self.costs).ravel(), outcomes.p_values(*self.targets).ravel()
        order = np.lexsort((cost, risk))
        order = np.concatenate(([0], order[order != 0]))
        cheapest = np.minimum.accumulate(cost[order])
        is_cheaper = np.concatenate(([True], cost[order][1:] < cheapest[:-1] * (1 - 1e-9)))
        return order[is_cheaper]

    def thresholds_at(self, combination: int) -> tuple[float | None, ...]:
        """Returns the threshold of each stage; `None` where it is not asked."""
        numbers = np.unravel_index(combination, tuple(len(each) + 1 for each in self.thresholds))
        return tuple(
            float(each[number - 1]) if number else None
            for each, number in zip(self.thresholds, numbers, strict=True)
        )

    def count(self, draws: Sequence[Draw]) -> _Outcomes:
        """Returns what becomes of draws, for each combination."""
        levels = [
            # The number of the first threshold that a score reaches; one more than there are for none.
            1 + np.searchsorted(-thresholds, -self._scores(draws, stage))
            for stage, thresholds in enumerate(self.thresholds)
        ]
        is_answered = np.array([draw.is_answered for draw in draws], dtype=bool)
        disagrees = [
            is_answered
            & np.array([(found := draw.stages[stage]) is not None and not found.agrees for draw in draws])
            for stage in range(len(levels))
        ]
        labels = np.array([draw.label or "" for draw in draws])
        of_class = [(labels == label) & is_answered for label in self.guaranteed or ()]
        everything = np.ones(len(draws), dtype=bool)
        return _Outcomes(
            draws=len(draws),
            kept=tuple(self._kept(levels, stage, everything) for stage in range(len(levels))),
            disagreements=self._disagreements(levels, disagrees, everything) + int((~is_answered).sum()),
            class_draws=tuple(int(members.sum()) for members in of_class),
            class_disagreements=tuple(self._disagreements(levels, disagrees, members) for members in of_class),
        )

    def _disagreements(
        self, levels: Sequence[_Counts], disagrees: Sequence[NDArray[np.bool_]], members: NDArray[np.bool_]
    ) -> _Counts:
        found = [self._kept(levels, stage, members & each) for stage, each in enumerate(disagrees)]
        total: _Counts = np.sum(np.broadcast_arrays(*found), axis=0)
        return total

    def _kept(self, levels: Sequence[_Counts], stage: int, members: NDArray[np.bool_]) -> _Counts:
        """Returns how many of some draws keep the answer of a stage: not that of one before, and a high score."""
        sizes = [len(each) + 2 for each in self.thresholds[: stage + 1]]
        cells = np.ravel_multi_index([each[members] for each in levels[: stage + 1]], sizes)
        counts = np.bincount(cells, minlength=math.prod(sizes)).reshape(sizes)
        for before in range(stage):
            counts = counts.sum(axis=before, keepdims=True) - counts.cumsum(axis=before)
        counts = counts.cumsum(axis=stage)[tuple(slice(size - 1) for size in sizes)]
        return counts.reshape(counts.shape + (1,) * (len(levels) - stage - 1))

    def _scores(self, draws: Sequence[Draw], stage: int) -> NDArray[np.float64]:
        """Returns the scores of a stage; minus infinity where its answer is never kept."""

        def score(answer: StageAnswer | None) -> float:
            return answer.score if answer is not None and may_be_kept(self.guaranteed, answer) else -math.inf

        return np.array([score(draw.stages[stage]) for draw in draws], dtype=float)


def may_be_kept(guaranteed: tuple[str, ...] | None, answer: StageAnswer) -> bool:
    """Whether an answer of a stage may be kept, with a high enough score.

    Args:
        guaranteed: Classes whose agreement is guaranteed; `None` for a job without classes.
        answer: The answer.
    """
    return math.isfinite(answer.score) and (guaranteed is None or answer.label in guaranteed)


def _quantiles(scores: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Returns thresholds, in descending order: all scores, or as many of them as `size`."""
    finite = np.sort(scores[np.isfinite(scores)])[::-1]
    if len(np.unique(finite)) > size:
        finite = finite[np.linspace(0, len(finite) - 1, size).round().astype(int)]
    return np.unique(finite)[::-1]


def _along(axis: int, axes: int) -> tuple[int, ...]:
    return tuple(-1 if each == axis else 1 for each in range(axes))


def _describe(
    search: _Search,
    outcomes: _Outcomes,
    path: NDArray[np.intp],
    steps: int,
    draws: Sequence[Draw],
    confidence: float,
) -> Calibration:
    """Returns the result of a search whose first `steps` combinations hold."""
    tested, chosen = outcomes.draws, path[max(steps - 1, 0)]
    kept = [np.broadcast_to(each, outcomes.disagreements.shape).ravel() for each in outcomes.kept]
    disagreements = outcomes.disagreements.ravel()
    cost = outcomes.cost(search.costs).ravel()

    def point(step: int) -> CurvePoint:
        agreed = tested - int(disagreements[path[step]])
        return CurvePoint(
            thresholds=search.thresholds_at(path[step]),
            escalated=1 - sum(int(each[path[step]]) for each in kept) / tested,
            agreement=agreed / tested,
            low=lower_bound(agreed, tested, confidence),
            is_certified=step < steps,
        )

    shown = np.linspace(0, len(path) - 1, min(len(path), _POINTS)).round().astype(int)
    curve = tuple(point(int(step)) for step in sorted({*shown, max(steps - 1, 0)}))
    agreed = tested - int(disagreements[chosen])
    labels = {draw.label for draw in draws if draw.label is not None}
    return Calibration(
        thresholds=search.thresholds_at(chosen),
        reason=_find_reason(search, outcomes, path, steps, confidence),
        guaranteed=search.guaranteed,
        not_guaranteed=tuple(sorted(labels.difference(search.guaranteed or ()))),
        draws=len(draws),
        tested=tested,
        agreement=agreed / tested,
        low=lower_bound(agreed, tested, confidence),
        high=upper_bound(agreed, tested, confidence),
        classes=_class_agreements(search, outcomes, chosen, confidence),
        kept=tuple(int(each[chosen]) / tested for each in kept),
        escalated=1 - sum(int(each[chosen]) for each in kept) / tested,
        cost_per_row=float(cost[chosen]),
        cost_per_row_by_model=search.costs.model,
        curve=curve,
    )


def _class_agreements(
    search: _Search, outcomes: _Outcomes, combination: int, confidence: float
) -> tuple[ClassAgreement, ...]:
    def describe(label: str, draws: int, disagreements: int) -> ClassAgreement:
        agreed = draws - disagreements
        low = lower_bound(agreed, draws, confidence)
        return ClassAgreement(label=label, draws=draws, agreement=agreed / draws if draws else 0.0, low=low)

    found = zip(search.guaranteed or (), outcomes.class_draws, outcomes.class_disagreements, strict=True)
    return tuple(describe(label, draws, int(each.ravel()[combination])) for label, draws, each in found)


def _find_reason(
    search: _Search, outcomes: _Outcomes, path: NDArray[np.intp], steps: int, confidence: float
) -> str:
    """Returns why `model` answers everything, or ""."""
    if steps > 1:
        return ""
    if len(path) == 1:
        return "no threshold costs less than `model` alone"
    target, of_class = search.targets
    missing, safest = int(outcomes.disagreements.flat[0]), path[steps]
    agreed = outcomes.draws - int(outcomes.disagreements.ravel()[safest])
    low = lower_bound(agreed, outcomes.draws, confidence)
    if low < target and steps == 0:
        return f"`model` has not answered {missing:,} of {outcomes.draws:,} draws, which count as disagreements"
    if low < target:
        return (
            f"no threshold is certain enough: with the safest that was tested, {agreed / outcomes.draws:.1%} of "
            f"{outcomes.draws:,} draws agree, which certifies {low:.1%}"
        )
    worst = min(_class_agreements(search, outcomes, safest, confidence), key=lambda each: each.low)
    return (
        f"no threshold is certain enough for class {worst.label!r}: with the safest that was tested, "
        f"{worst.agreement:.1%} of its {worst.draws:,} draws agree, which certifies {worst.low:.1%}, less than "
        f"{of_class:.1%}"
    )
