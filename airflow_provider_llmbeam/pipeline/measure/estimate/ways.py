"""The ways in which the prompts of a job may reach its model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from airflow_provider_llmbeam.engine.prefix import storage_usd
from airflow_provider_llmbeam.pipeline.batch_inference.decide import BatchPlan
from airflow_provider_llmbeam.pipeline.batch_inference.ways import FLEX_RATIOS, Way, Work, choose, ways_of
from airflow_provider_llmbeam.pipeline.prefix_cache import TTL_SECONDS, head_to_cache
from airflow_provider_llmbeam.spec.facts import TIER_RATIOS
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.job.inference_rules import has_batch_inference, has_flex
from airflow_provider_llmbeam.spec.model.price import Price
from airflow_provider_llmbeam.spec.model.tier import FLEX_TIERS, ordinary_tier


def ways_of_job(
    spec: JobSpec, work: Work, price: Price | None, online_seconds: float | None, now: float
) -> tuple[Way, ...]:
    """Returns what each way costs, and when it is finished; none for a job that can only be run online.

    Args:
        spec: The job.
        work: The prompts that have no answer yet, see `with_head`.
        price: Price of the model; `None` if it is not known.
        online_seconds: Time that they take online, in seconds; `None` if it is not known.
        now: Unix time.
    """
    if not work.rows or not has_batch_inference(spec):
        return ()
    plan = plan_of(spec, now, deadline_at(spec, now), online_seconds)
    ordinary = ordinary_tier(spec.inference.service_tier)
    return ways_of(work, plan, price, now, has_flex=has_flex(spec), ordinary=ordinary)


def with_head(spec: JobSpec, work: Work, price: Price | None, tokens: float, online_seconds: float | None) -> Work:
    """Returns the prompts of a job with the part of them that a prefix cache would hold, and with its cost.

    Args:
        spec: The job.
        work: The prompts that have no answer yet.
        price: Price of the model; `None` if it is not known.
        tokens: Their estimated input tokens, before a sample said how many are billed.
        online_seconds: Time for which the cache is stored, in seconds; `None` if it is not known.
    """
    head = head_to_cache(spec)
    if head is None or price is None:
        return work
    head_tokens = head.tokens * work.input_tokens / tokens if tokens else float(head.tokens)
    seconds = TTL_SECONDS if online_seconds is None else online_seconds
    storage = storage_usd(spec.model.name, round(head_tokens), seconds, datetime.now(UTC))
    return replace(
        work,
        prefix_tokens=min(round(head_tokens * work.rows), work.input_tokens - work.audio_tokens),
        prefix_usd=price.cost_usd(head_tokens, 0) + (storage or 0.0),
    )


def auto_way(spec: JobSpec, ways: Sequence[Way]) -> tuple[Way, str]:
    """Returns the way that `auto` takes of those that the spec allows, with the reason."""
    return choose([way for way in ways if way.tier != "flex" or spec.inference.service_tier in FLEX_TIERS])


def planned_cost_usd(spec: JobSpec, work: Work, price: Price | None, ways: tuple[Way, ...]) -> float | None:
    """Returns the cost in the mode of a job, in US dollars; `None` if it is not known.

    Args:
        spec: The job.
        work: The prompts that have no answer yet, see `with_head`.
        price: Price of the model; `None` if it is not known.
        ways: See `ways_of_job`.
    """
    match spec.inference.mode:
        case "batch":
            return work.cost_usd(price, TIER_RATIOS["batch"])
        case "auto" if ways:
            return auto_way(spec, ways)[0].cost_usd
    tier = spec.inference.service_tier
    ratio = None if price is None else price.ratio_at(ordinary_tier(tier))
    return work.cost_usd(price, None if ratio is None else ratio * FLEX_RATIOS[tier], prefix_cache=True)


def plan_of(
    spec: JobSpec, started_at: float, deadline_at: float | None, online_seconds: float | None
) -> BatchPlan:
    """Returns what is known before the first poll, see `BatchPlan`."""
    return BatchPlan(
        started_at=started_at,
        deadline_at=deadline_at,
        max_wait_seconds=spec.inference.max_batch_wait_seconds,
        online_seconds=online_seconds,
    )


def deadline_at(spec: JobSpec, now: float) -> float | None:
    """Returns the Unix time by which the answers of a run that starts now are needed; `None` for no deadline."""
    end = spec.inference.end_of_run(datetime.fromtimestamp(now, UTC))
    return None if end is None else end.timestamp()
