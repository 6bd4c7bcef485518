"""Whether a job would finish in its window, where, and at which rate. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from airflow_provider_llmbeam.quota.evidence import Unit
from airflow_provider_llmbeam.quota.findings import Verdict
from airflow_provider_llmbeam.quota.health import QuotaHealth
from airflow_provider_llmbeam.spec.demand import Demand
from airflow_provider_llmbeam.spec.quota_question import QuotaQuestion

_ORDER: tuple[Verdict, ...] = ("healthy", "degraded", "unknown", "exhausted")


@dataclass(frozen=True, slots=True)
class Fit:
    """How a job and its window match.

    Attributes:
        seconds: That the job would take; `None` where no rate, or no demand, is known.
        ratio: Share of the job that the window holds, at most 1; `None` likewise.
    """

    seconds: float | None = None
    ratio: float | None = None


def rates(question: QuotaQuestion, health: QuotaHealth) -> dict[Unit, float]:
    """What the job may send per minute: what is free, and no more than its own limits and its share of them."""
    limits = question.limits
    found: dict[Unit, float] = dict(health.rates)
    own: tuple[tuple[Unit, float | None], ...] = (
        ("requests", limits.requests_per_minute),
        ("tokens", limits.tokens_per_minute),
    )
    for unit, limit in own:
        if limit is not None:
            found[unit] = min(limits.share_ratio * limit, found.get(unit, math.inf))
    return found


def fit(question: QuotaQuestion, health: QuotaHealth) -> Fit:
    """Works out how long the job takes at the rates that it may have."""
    known, demand = rates(question, health), question.demand
    if demand is None or not known:
        return Fit()
    amounts = _amounts(demand)
    seconds = max(
        60 * amounts[unit] / rate if rate else math.inf if amounts[unit] else 0.0 for unit, rate in known.items()
    )
    if question.window_seconds is None:
        return Fit(seconds, None if math.isfinite(seconds) else 0.0)
    return Fit(seconds, 1.0 if seconds <= question.window_seconds else question.window_seconds / seconds)


def may_start(question: QuotaQuestion, health: QuotaHealth) -> bool:
    """Whether the job should start: there is room, and it is not known to be too little; or it asks nothing."""
    if question.demand is not None and not question.demand.rows:
        return True
    if health.verdict in ("exhausted", "unknown"):
        return False
    ratio = fit(question, health).ratio
    return ratio is None or ratio >= question.min_fit_ratio


def best(question: QuotaQuestion, healths: Iterable[QuotaHealth]) -> QuotaHealth:
    """Picks the location to run in: where it may start, the best verdict, the soonest end, the first named."""

    def order(health: QuotaHealth) -> tuple[bool, int, float, float]:
        seconds = fit(question, health).seconds
        rate = min(rates(question, health).values(), default=math.inf)
        verdict = _ORDER.index(health.verdict)
        return not may_start(question, health), verdict, 0.0 if seconds is None else seconds, -rate

    return min(healths, key=order)


def recommended_limits(question: QuotaQuestion, health: QuotaHealth) -> dict[str, Any]:
    """What `RunInferenceOperator(limits=…)` should take: the rates that the job may have, and all else as it was.

    `share_ratio` is left out: it is in the rates already.
    """
    found = question.limits.model_dump(mode="json", exclude_unset=True, exclude={"share_ratio"})
    known = rates(question, health)
    tokens = [_both(question.demand, unit, rate) for unit, rate in known.items() if unit != "requests"]
    if "requests" in known:
        found["requests_per_minute"] = _rounded(known["requests"])
    if tokens:
        found["tokens_per_minute"] = _rounded(min(tokens))
    return found


def _amounts(demand: Demand) -> dict[Unit, float]:
    return {
        "requests": demand.rows,
        "tokens": demand.tokens,
        "input_tokens": demand.rows * demand.input_tokens_per_row,
        "output_tokens": demand.rows * demand.output_tokens_per_row,
    }


def _both(demand: Demand | None, unit: Unit, rate: float) -> float:
    """A rate of input or of output tokens as one of both together, which is what a job paces by."""
    part = _amounts(demand)[unit] if demand is not None else 0.0
    return rate * demand.tokens / part if demand is not None and part else rate


def _rounded(rate: float) -> float:
    return max(0.1, math.floor(10 * rate) / 10)
