"""Calibrations of cascades on rows drawn at random: `python -m bench.cascade`.

The code of a job chooses thresholds from a sample; then all rows say how many final answers agree. The cheap model
is right on 85 % of the rows. Its score is normal with the variance 1, and its mean differs between right and wrong
answers by what gives the AUROC. Nothing is sent.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist, fmean

import numpy as np
from numpy.typing import NDArray

from airflow_provider_llmbeam.pipeline.cascade.audit import Audit, contradicts
from airflow_provider_llmbeam.pipeline.cascade.binomial import lower_bound, upper_bound
from airflow_provider_llmbeam.pipeline.cascade.calibration import (
    Calibration,
    Costs,
    Draw,
    StageAnswer,
    calibrate,
)
from airflow_provider_llmbeam.pipeline.cascade.draw import draw_sample

CONFIDENCE = 0.95
CLASS_AGREEMENT = 0.8
GOOD, POOR, USELESS = 0.90, 0.65, 0.5
#: Distinct prompts of a run; each stands for 1 to 9 rows.
PROMPTS = 10_000
AUDIT_ROWS = 300
#: How far agreement falls below the target where rows shift after the calibration.
SHIFT = 0.1
#: Interval of the shares of runs, one-sided at each end.
_INTERVAL = 0.995
#: Numbers of prompts, and of thresholds of each stage, among which the best ones are looked for.
_BEST_BY_ONE = (60_000, 500)
_BEST_BY_SEVERAL = (10_000, 30)
#: Share of the difficulty of a row that all its stages have in common.
_COMMON = 0.5


@dataclass(frozen=True, slots=True)
class Setting:
    """What is drawn.

    Attributes:
        name: Line of the table.
        target: Target agreement.
        sample_rows: Number of draws.
        auroc: Area under the ROC curve of the scores of each stage.
        right: Share of the rows on which each stage agrees with `model`.
        costs: Cost of a row at each stage; at `model` it is 1.
        heavy: Share of the rows that have one prompt.
        rare: Share of a class of which the cheap model is right on 45 % of the rows, and as sure of the others; 0
            without classes.
        noise: Share of the answers of `model` that another request would answer differently.
        shifts: Whether the rows shift after the calibration.
    """

    name: str
    target: float = 0.95
    sample_rows: int = 1000
    auroc: float = GOOD
    right: tuple[float, ...] = (0.85,)
    costs: tuple[float, ...] = (0.1,)
    heavy: float = 0.0
    rare: float = 0.0
    noise: float = 0.0
    shifts: bool = False


SETTINGS: tuple[Setting, ...] = (
    *(
        Setting(f"{target:.2f}, {draws:,} draws, {quality} scores", target, draws, auroc)
        for target, draws, (quality, auroc) in itertools.product(
            (0.90, 0.95, 0.98), (300, 1000), (("good", GOOD), ("poor", POOR))
        )
    ),
    Setting("three stages", right=(0.70, 0.85, 0.93), costs=(0.02, 0.1, 0.3)),
    Setting("useless scores", auroc=USELESS),
    Setting("one prompt on half of the rows", heavy=0.5),
    Setting("a rare class", rare=0.08),
    Setting("`model` differs from itself on 3 %", noise=0.03),
    Setting("rows shift after the calibration", shifts=True),
)


@dataclass(frozen=True, slots=True)
class Rows:
    """Prompts, the number of rows of each, and what the stages and `model` answer.

    Attributes:
        weights: Number of rows of each prompt.
        scores: Scores of each stage.
        agrees: Whether the answer of each stage agrees with that of `model`.
        labels: Class of the answer of `model`.
        predicted: Class of the answer of each stage.
    """

    weights: NDArray[np.int64]
    scores: list[NDArray[np.float64]]
    agrees: list[NDArray[np.bool_]]
    labels: NDArray[np.str_] | None = None
    predicted: list[NDArray[np.str_]] = field(default_factory=list)

    def draw(self, index: int) -> Draw:
        """Returns a prompt as one of the draws of a calibration."""
        stages = tuple(
            StageAnswer(
                float(scores[index]),
                bool(agrees[index]),
                None if self.labels is None else str(self.predicted[stage][index]),
            )
            for stage, (scores, agrees) in enumerate(zip(self.scores, self.agrees, strict=True))
        )
        return Draw(stages, label=None if self.labels is None else str(self.labels[index]))

    def choose(self, calibration: Calibration) -> NDArray[np.int64]:
        """Returns the stage that answers each prompt; the number of stages for `model`."""
        chosen = np.full(len(self.weights), len(self.scores))
        for stage, threshold in reversed([*enumerate(calibration.thresholds)]):
            if threshold is None:
                continue
            kept = self.scores[stage] >= threshold
            if self.labels is not None:
                kept &= np.isin(self.predicted[stage], calibration.guaranteed or ())
            chosen[kept] = stage
        return chosen

    def share(self, members: NDArray[np.bool_]) -> float:
        """Returns the share of the rows whose prompts are members."""
        return float(self.weights[members].sum() / self.weights.sum())

    def share_by_class(self, members: NDArray[np.bool_]) -> dict[str, float]:
        """Returns the share of members among the rows of each class."""
        return {
            str(label): float((self.weights * (members & (self.labels == label))).sum())
            / float(self.weights[self.labels == label].sum())
            for label in (() if self.labels is None else np.unique(self.labels))
        }


def draw_rows(setting: Setting, source: np.random.Generator, prompts: int) -> Rows:
    """Returns the rows of a run."""
    distance = NormalDist().inv_cdf(setting.auroc) * 2**0.5
    weights = source.integers(1, 10, prompts)
    if setting.heavy:
        weights[0] = int(weights[1:].sum() * setting.heavy / (1 - setting.heavy))
    common = source.standard_normal(prompts)
    rare = source.random(prompts) < setting.rare
    labels = np.where(rare, "rare", source.choice(["a", "b", "c"], prompts)) if setting.rare else None
    noisy = source.random(prompts) < setting.noise
    scores, agrees, predicted = [], [], []
    for right in setting.right:
        share = np.full(prompts, right)
        if setting.rare:
            share = np.where(rare, 0.45, (right - 0.45 * setting.rare) / (1 - setting.rare))
        ease = _COMMON**0.5 * common + (1 - _COMMON) ** 0.5 * source.standard_normal(prompts)
        is_right = ease < _quantiles(share)
        scores.append(source.standard_normal(prompts) + distance * (is_right | rare))
        agrees.append(is_right & ~noisy)
        if labels is not None:
            others = source.choice(["a", "b", "c"], prompts)
            wrong = np.where(others == labels, np.where(others == "a", "b", "a"), others)
            predicted.append(np.where(is_right, labels, wrong))
    return Rows(weights, scores, agrees, labels, predicted)


def _quantiles(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    known = {share: NormalDist().inv_cdf(share) for share in np.unique(shares)}
    found: NDArray[np.float64] = np.vectorize(known.__getitem__)(shares)
    return found


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a run.

    Attributes:
        misses: Whether the agreement of all rows, or of a guaranteed class, is below its target.
        is_found: Whether a stage is used.
        escalated: Share of the rows that `model` answers.
        cost: Cost beside that of all rows by `model`.
        agreement: Share of the rows whose final answer agrees.
        rare: The same among the rows of the rare class: as calibrated, and without guarantees of classes.
        alarms: Whether an audit contradicts: without a shift, and with one. `None` if nothing is kept.
    """

    misses: bool
    is_found: bool
    escalated: float
    cost: float
    agreement: float
    rare: tuple[float, float] | None
    alarms: tuple[bool, bool] | None


def run(setting: Setting, seed: int) -> Result:
    """Draws rows, calibrates, and counts all of them."""
    source = np.random.default_rng(seed)
    rows = draw_rows(setting, source, PROMPTS)
    weights = {f"{index:05d}": int(weight) for index, weight in enumerate(rows.weights)}
    drawn = draw_sample(weights, seed, setting.sample_rows)
    draws = [rows.draw(int(digest)) for digest in drawn]
    calibration = calibrate_draws(setting, draws)
    chosen = rows.choose(calibration)
    agrees = final_agreement(rows, chosen)
    agreement = rows.share(agrees)
    of_classes = rows.share_by_class(agrees)
    guaranteed = [share for label, share in of_classes.items() if label in (calibration.guaranteed or ())]
    rare = None
    if rows.labels is not None:
        plain = replace(rows, labels=None)
        unguarded = plain.choose(calibrate_draws(setting, [plain.draw(int(digest)) for digest in drawn]))
        rare = of_classes["rare"], rows.share_by_class(final_agreement(rows, unguarded))["rare"]
    is_by_model = chosen == len(setting.right)
    return Result(
        misses=bool(agreement < setting.target or any(share < CLASS_AGREEMENT for share in guaranteed)),
        is_found=not calibration.reason,
        escalated=rows.share(is_by_model),
        cost=_cost(setting, rows, chosen, calibration.asked),
        agreement=agreement,
        rare=rare,
        alarms=_audit(setting, rows, chosen, agrees, source) if setting.shifts else None,
    )


def calibrate_draws(setting: Setting, draws: Sequence[Draw]) -> Calibration:
    """Returns the calibration of a job with the setting."""
    return calibrate(
        draws,
        Costs(setting.costs, 1.0),
        target_agreement=setting.target,
        confidence=CONFIDENCE,
        class_agreement=CLASS_AGREEMENT,
    )


def final_agreement(rows: Rows, chosen: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Returns which final answers agree with those of `model`: its own do."""
    return np.select([chosen == stage for stage in range(len(rows.agrees))], rows.agrees, True)


def _cost(setting: Setting, rows: Rows, chosen: NDArray[np.int64], asked: Sequence[int]) -> float:
    stages = sum(setting.costs[stage] * rows.share(chosen >= stage) for stage in asked)
    return stages + rows.share(chosen == len(setting.right))


def _audit(
    setting: Setting,
    rows: Rows,
    chosen: NDArray[np.int64],
    agrees: NDArray[np.bool_],
    source: np.random.Generator,
) -> tuple[bool, bool] | None:
    """Audits rows with the chosen thresholds, unchanged and after some of the kept answers have become wrong."""
    kept = chosen < len(setting.right)
    if not kept.any():
        return None
    missing = rows.share(agrees) - (setting.target - SHIFT)
    is_wrong = kept & (source.random(len(kept)) < missing / rows.share(kept & agrees))
    shares = rows.weights[kept] / rows.weights[kept].sum()

    def is_contradicted(agrees: NDArray[np.bool_]) -> bool:
        drawn = source.choice(agrees[kept], AUDIT_ROWS, p=shares)
        audit = Audit(
            rows=int(rows.weights.sum()),
            kept=int(rows.weights[kept].sum()),
            audited=AUDIT_ROWS,
            disagreements=int((~drawn).sum()),
        )
        return contradicts(audit, setting.target)

    return is_contradicted(agrees), is_contradicted(agrees & ~is_wrong)


def best_choice(setting: Setting) -> tuple[float, float]:
    """Returns escalated share and cost of the cheapest thresholds, if all agreement were known."""
    stages = len(setting.right)
    prompts, quantiles = _BEST_BY_ONE if stages == 1 else _BEST_BY_SEVERAL
    rows = draw_rows(setting, np.random.default_rng(0), prompts)
    steps = [(np.inf, *np.quantile(scores, np.linspace(1, 0, quantiles))) for scores in rows.scores]
    best = (1.0, 1.0)
    for thresholds in itertools.product(*steps):
        chosen = np.full(prompts, stages)
        for stage in reversed(range(stages)):
            chosen[rows.scores[stage] >= thresholds[stage]] = stage
        cost = _cost(setting, rows, chosen, [stage for stage in range(stages) if np.isfinite(thresholds[stage])])
        if cost >= best[1]:
            continue
        agrees = final_agreement(rows, chosen)
        of_classes = rows.share_by_class(agrees).values()
        if rows.share(agrees) >= setting.target and all(share >= CLASS_AGREEMENT for share in of_classes):
            best = (rows.share(chosen == stages), cost)
    return best


TITLES = (
    "| Setting | Missed the target: 99 % interval | Found a threshold | Sent to `model` | Best possible "
    "| Cost | Best |\n|---|---|---|---|---|---|---|"
)


def line(setting: Setting, results: Sequence[Result]) -> str:
    """Returns the line of a setting in the table."""
    runs, missed = len(results), sum(result.misses for result in results)
    low, high = lower_bound(missed, runs, _INTERVAL), upper_bound(missed, runs, _INTERVAL)
    escalated, cost = best_choice(setting)
    return (
        f"| {setting.name} | {missed / runs:.1%}: {low:.1%}–{high:.1%} "
        f"| {fmean(result.is_found for result in results):.0%} "
        f"| {fmean(result.escalated for result in results):.1%} | {escalated:.1%} "
        f"| {fmean(result.cost for result in results):.2f} | {cost:.2f} |"
    )


def notes(setting: Setting, results: Sequence[Result]) -> Iterator[str]:
    """Yields what a setting says beside its line."""
    if setting.rare:
        found = [result.rare for result in results if result.rare is not None]
        for shares, name in zip(zip(*found, strict=True), ("with", "without"), strict=True):
            yield (
                f"{setting.name}, {name} the guarantee of classes: mean agreement {fmean(shares):.1%} among its "
                f"rows, below {CLASS_AGREEMENT:.0%} in {fmean(share < CLASS_AGREEMENT for share in shares):.1%}"
            )
    if setting.shifts:
        alarms = [result.alarms for result in results if result.alarms is not None]
        unshifted, shifted = (fmean(each) for each in zip(*alarms, strict=True))
        yield (
            f"{setting.name}: {AUDIT_ROWS} audited rows contradict in {shifted:.2%} of the runs, and without a "
            f"shift in {unshifted:.2%}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; returns 1 if a setting misses its target more often than allowed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000, metavar="N", help="runs of each setting (default: 2000)")
    parser.add_argument("--first-seed", type=int, default=0, metavar="N", help="seed of the first (default: 0)")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="processes (default: 1)")
    options = parser.parse_args(arguments)
    sys.stdout.write(f"{TITLES}\n")
    remarks: list[str] = []
    is_missed = False
    began = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for setting in SETTINGS:
            seeds = range(options.first_seed, options.first_seed + options.runs)
            results = pool.starmap(run, ((setting, seed) for seed in seeds), chunksize=20)
            missed = sum(result.misses for result in results)
            is_missed |= lower_bound(missed, options.runs, _INTERVAL) > 1 - CONFIDENCE
            sys.stdout.write(line(setting, results) + "\n")
            sys.stdout.flush()
            remarks += notes(setting, results)
    sys.stdout.write("\n".join(["", *remarks, f"{time.monotonic() - began:.0f} s"]) + "\n")
    return int(is_missed)


if __name__ == "__main__":
    sys.exit(main())
