"""Whether a job would finish in its window, where, and at which rate. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_llmbeam.hooks.quota_findings import Verdict
from airflow_provider_llmbeam.hooks.quota_health import QuotaHealth
from airflow_provider_llmbeam.spec.demand import Demand

_ORDER: tuple[Verdict, ...] = ("healthy", "degraded", "unknown", "exhausted")


@dataclass(frozen=True, slots=True)
class Fit:
    """How a job and a window match.

    Attributes:
        seconds: That the job would take; `None` where no rate, or no demand, is known.
        ratio: Share of the job that the window holds, at most 1; `None` likewise.
    """

    seconds: float | None = None
    ratio: float | None = None


def fit(health: QuotaHealth, demand: Demand | None, window_seconds: float | None) -> Fit:
    """Works out how long a job takes at the rate that is free.

    Args:
        health: Of the place where it would run.
        demand: What it asks; `None`: not known.
        window_seconds: In which it is to finish; `None`: in any.
    """
    rates = (health.requests_per_minute, health.tokens_per_minute)
    if demand is None or rates == (None, None):
        return Fit()
    amounts = (float(demand.rows), demand.tokens)
    seconds = max(
        60 * amount / rate if rate else math.inf if amount else 0.0
        for amount, rate in zip(amounts, rates, strict=True)
        if rate is not None
    )
    if window_seconds is None:
        return Fit(seconds, None if math.isfinite(seconds) else 0.0)
    return Fit(seconds, 1.0 if seconds <= window_seconds else window_seconds / seconds)


def may_start(health: QuotaHealth, found: Fit, min_fit_ratio: float) -> bool:
    """Whether a job should start: there is room, and it is not known to be too little."""
    if health.verdict in ("exhausted", "unknown"):
        return False
    return found.ratio is None or found.ratio >= min_fit_ratio


def best(healths: Iterable[QuotaHealth], demand: Demand | None, window_seconds: float | None) -> QuotaHealth:
    """Picks the location to run in: the best verdict, then the one that finishes first, then the first named."""

    def order(health: QuotaHealth) -> tuple[int, float, float]:
        found = fit(health, demand, window_seconds)
        rate = health.requests_per_minute or health.tokens_per_minute or math.inf
        return _ORDER.index(health.verdict), found.seconds or 0.0, -rate

    return min(healths, key=order)


def recommended_limits(limits: Mapping[str, Any], health: QuotaHealth) -> dict[str, Any]:
    """What `RunInferenceOperator(limits=…)` should take: what is free now, and all else as it was.

    Args:
        limits: Of the job, see `spec.Limits`. Its own rates and `share_ratio` bound what is recommended.
        health: Of the place where it runs.
    """
    share = float(limits.get("share_ratio") or 1.0)
    found = {name: value for name, value in limits.items() if name != "share_ratio"}
    for name, free in (
        ("requests_per_minute", health.requests_per_minute),
        ("tokens_per_minute", health.tokens_per_minute),
    ):
        own = share * float(limits[name]) if limits.get(name) else None
        rates = [rate for rate in (free, own) if rate is not None]
        if rates:
            found[name] = max(1.0, math.floor(10 * min(rates)) / 10)
    return found
