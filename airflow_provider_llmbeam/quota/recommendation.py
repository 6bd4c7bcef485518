"""Recommendation: whether a job would finish in its window, where, and at which rate. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_llmbeam.quota.evidence import Unit
from airflow_provider_llmbeam.quota.findings import Verdict
from airflow_provider_llmbeam.quota.health import QuotaHealth
from airflow_provider_llmbeam.spec.demand import Demand, EarlierRate
from airflow_provider_llmbeam.spec.quota_question import QuotaQuestion
from airflow_provider_llmbeam.spec.usage_tier import seconds_by_tier, threshold_of

_ORDER: tuple[Verdict, ...] = ("healthy", "degraded", "unknown", "exhausted")


@dataclass(frozen=True, slots=True)
class Fit:
    """Fit of a job into its window.

    Attributes:
        seconds: Duration of the job; `None` if no rate or no demand is known.
        ratio: Share of the job that fits into the window, 0 to 1; `None` if not known.
        learned_rate: Rate of an earlier job, if the duration follows from it; `None` if it follows from the
            evidence.
        tier_seconds: Duration at the threshold of each usage tier, or of the one that is stated, if no rate is
            known. That at the stated one is `seconds`, and else this is `None`.
    """

    seconds: float | None = None
    ratio: float | None = None
    learned_rate: EarlierRate | None = None
    tier_seconds: dict[int, float] = field(default_factory=dict)


def rates(question: QuotaQuestion, health: QuotaHealth) -> dict[Unit, float]:
    """Returns the rates per minute that are free, bounded by the job's own limits and its share of them.

    What a pool has admitted bounds no job that is served first up to a threshold.
    """
    limits, model = question.limits, question.model_at(health.location)
    has_threshold = model is not None and threshold_of(model, limits) is not None
    found: dict[Unit, float] = {} if has_threshold else dict(health.rates)
    own: tuple[tuple[Unit, float | None], ...] = (
        ("requests", limits.requests_per_minute),
        ("tokens", limits.tokens_per_minute),
    )
    for unit, limit in own:
        if limit is not None:
            found[unit] = min(limits.share_ratio * limit, found.get(unit, math.inf))
    return found


def fit(question: QuotaQuestion, health: QuotaHealth) -> Fit:
    """Returns how long the job takes at the free rates, and how much of it fits into the window.

    Where no rate is known, the duration is that at the threshold of the stated usage tier, else that at the rate
    of an earlier job.
    """
    known, demand, model = rates(question, health), question.demand, question.model_at(health.location)
    if demand is None:
        return Fit()
    learned, tiers = None, dict[int, float]()
    if not known and model is not None:
        tiers = seconds_by_tier(model, question.limits, demand.tokens)
        threshold, learned = threshold_of(model, question.limits), demand.learned_rate
        if threshold is not None:
            known, learned = {"tokens": threshold}, None
        elif learned is not None:
            tiers = {}
            tokens = learned.tokens_per_minute
            known = {"requests": learned.requests_per_minute} if tokens is None else {"tokens": tokens}
    if not known:
        return Fit(tier_seconds=tiers)
    amounts = _amounts(demand)
    seconds = max(
        60 * amounts[unit] / rate if rate else math.inf if amounts[unit] else 0.0 for unit, rate in known.items()
    )
    if question.window_seconds is None:
        return Fit(seconds, None if math.isfinite(seconds) else 0.0, learned, tiers)
    ratio = 1.0 if seconds <= question.window_seconds else question.window_seconds / seconds
    return Fit(seconds, ratio, learned, tiers)


def may_start(question: QuotaQuestion, health: QuotaHealth) -> bool:
    """Whether the job should start: quota is free and not known to be insufficient, or the job has no rows."""
    if question.demand is not None and not question.demand.rows:
        return True
    if health.verdict in ("exhausted", "unknown"):
        return False
    found = fit(question, health)
    # Only a job renews a learned rate: a low one that holds back a job would hold back all later ones. And waiting
    # raises no threshold, above which the pool may admit more.
    is_no_bound = found.learned_rate is not None or bool(found.tier_seconds)
    return found.ratio is None or is_no_bound or found.ratio >= question.min_fit_ratio


def best(question: QuotaQuestion, healths: Iterable[QuotaHealth]) -> QuotaHealth:
    """Returns the best location by: whether the job may start, verdict, end of the job, order in `locations`."""

    def order(health: QuotaHealth) -> tuple[bool, int, float, float]:
        seconds = fit(question, health).seconds
        rate = min(rates(question, health).values(), default=math.inf)
        verdict = _ORDER.index(health.verdict)
        return not may_start(question, health), verdict, 0.0 if seconds is None else seconds, -rate

    return min(healths, key=order)


def recommended_limits(question: QuotaQuestion, health: QuotaHealth) -> dict[str, Any]:
    """Returns `limits` for `RunInferenceOperator`: the free rates, and all other fields unchanged.

    `share_ratio` is omitted because the rates already include it.
    """
    found = question.limits.model_dump(mode="json", exclude_unset=True, exclude={"share_ratio"})
    known = rates(question, health)
    tokens = [_both(question.demand, unit, rate) for unit, rate in known.items() if unit != "requests"]
    if "requests" in known:
        found["requests_per_minute"] = _round_down(known["requests"])
    if tokens:
        found["tokens_per_minute"] = _round_down(min(tokens))
    return found


def _amounts(demand: Demand) -> dict[Unit, float]:
    return {
        "requests": demand.rows,
        "tokens": demand.tokens,
        "input_tokens": demand.rows * demand.input_tokens_per_row,
        "output_tokens": demand.rows * demand.output_tokens_per_row,
    }


def _both(demand: Demand | None, unit: Unit, rate: float) -> float:
    """Converts a rate of input or output tokens to total tokens, by which a job is paced."""
    part = _amounts(demand)[unit] if demand is not None else 0.0
    return rate * demand.tokens / part if demand is not None and part else rate


def _round_down(rate: float) -> float:
    return max(0.1, math.floor(10 * rate) / 10)
