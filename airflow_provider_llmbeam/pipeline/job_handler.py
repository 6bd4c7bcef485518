"""The model handler of a job."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from airflow_provider_llmbeam.engine.prefix.head import CachedHead
from airflow_provider_llmbeam.pipeline.audit.trail import AuditTrail
from airflow_provider_llmbeam.pipeline.lease.launcher import Launcher
from airflow_provider_llmbeam.pipeline.run_inference import CLOCK_SECONDS, LLMModelHandler
from airflow_provider_llmbeam.pipeline.transforms.reuse import refused_since
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.job.display_name import display_name_prefix
from airflow_provider_llmbeam.spec.model.tier import RequestedTier
from airflow_provider_llmbeam.spec.runner import DetachedRunner
from airflow_provider_llmbeam.spec.runner.workers import limits_of_a_worker


def handler_of_job(
    spec: JobSpec,
    oldest_at: float,
    started_at: float,
    *,
    can_stop: bool = True,
    progress_prefix: str | None = None,
    launcher: Launcher | None = None,
    cached_head: CachedHead | None = None,
    run_began_at: float | None = None,
    service_tier: RequestedTier = "standard",
    flex_until: float = math.inf,
    handler: Callable[..., LLMModelHandler[Any]] = LLMModelHandler,
) -> LLMModelHandler[Any]:
    """Returns the handler of a job, with its limits and its journal.

    Args:
        spec: The job.
        oldest_at: Unix time; older answers in the journal are requested again.
        started_at: Unix time of the launch; the graph has read the segments that were there then.
        can_stop: Whether the stop file of the job ends it.
        progress_prefix: See `LLMModelHandler`.
        launcher: See `LLMModelHandler`.
        cached_head: See `LLMModelHandler`.
        run_began_at: Unix time of the pilot of this run; `None` without one.
        service_tier: See `LLMModelHandler`.
        flex_until: See `LLMModelHandler`.
        handler: Makes the handler.
    """
    return handler(
        spec.model,
        generation=spec.generation,
        limits=limits_of_a_worker(spec.runner, spec.limits),
        batching=spec.batching,
        output_schema=spec.prompt.output_schema,
        embedding=spec.embedding,
        journal_uri=spec.journal_uri,
        rates_uri=spec.rates_uri,
        oldest_at=oldest_at,
        since=started_at - CLOCK_SECONDS,
        refused_since=refused_since(spec, started_at, run_began_at),
        stop_uri=spec.stop_uri if can_stop else None,
        awaits_cancellation=isinstance(spec.runner, DetachedRunner),
        launcher=launcher,
        prompt_of=lambda request: request.prompt,
        fingerprint_of=lambda request: request.fingerprint,
        job=spec.name,
        max_repairs=spec.prompt.max_repairs,
        environment_secrets=spec.environment_secrets,
        progress_prefix=progress_prefix,
        cached_head=cached_head,
        service_tier=service_tier,
        flex_until=flex_until,
        upload_prefix=display_name_prefix(spec) if spec.prompt.media else None,
        audit=AuditTrail.of(spec),
    )
