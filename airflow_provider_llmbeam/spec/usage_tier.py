"""Usage tiers of Vertex AI's Standard PayGo: up to which rate the requests of an organisation are served first."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_llmbeam.spec.facts import SHARED_POOL, TIER_LOCATION, USAGE_TIERS
from airflow_provider_llmbeam.spec.limits import Limits
from airflow_provider_llmbeam.spec.model import GeminiModel, Model
from airflow_provider_llmbeam.spec.protocol.counts import hours


def thresholds_of(model: Model) -> Mapping[int, int]:
    """Returns the thresholds of a model by usage tier, in tokens per minute; none where the service has none."""
    if not isinstance(model, GeminiModel) or model.project is None or model.location != TIER_LOCATION:
        return {}
    name = model.name.rpartition("/")[2]
    return USAGE_TIERS["pro" if "-pro" in name else "flash"] if SHARED_POOL.match(name) else {}


def threshold_of(model: Model, limits: Limits) -> float | None:
    """Returns the part of the threshold that a job may use, in tokens per minute.

    `None` if the tier is not stated, the model has no threshold, or the job states a rate, which then counts.
    """
    tier, known = limits.usage_tier, thresholds_of(model)
    has_rate = limits.requests_per_minute is not None or limits.tokens_per_minute is not None
    if tier is None or has_rate or not known:
        return None
    return limits.share_ratio * known.get(tier, tier)


def seconds_by_tier(model: Model, limits: Limits, tokens: float) -> dict[int, float]:
    """Returns the time that tokens take at the threshold of each tier, or of the stated one, in seconds."""
    if (stated := threshold_of(model, limits)) is not None and limits.usage_tier is not None:
        return {limits.usage_tier: 60 * tokens / stated}
    if limits.requests_per_minute is not None or limits.tokens_per_minute is not None:
        return {}
    return {tier: 60 * tokens / per_minute for tier, per_minute in thresholds_of(model).items()}


def hours_by_tier(seconds: Mapping[int, float]) -> str:
    """Returns these times for people, e.g. '3.2 h at usage tier 2, 1.3 h at usage tier 3'."""
    return ", ".join(f"{hours(each)} at {tier_name(tier)}" for tier, each in seconds.items())


def tier_name(tier: int) -> str:
    """Returns the name of a tier, or of a custom one by its threshold."""
    return f"usage tier {tier}" if tier in USAGE_TIERS["flash"] else f"a threshold of {tier:,} tokens per minute"
