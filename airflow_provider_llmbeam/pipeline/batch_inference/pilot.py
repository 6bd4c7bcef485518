"""The first prompts of a job, sent online before the way of the rest is chosen."""

from __future__ import annotations

from airflow_provider_llmbeam.exceptions import SourceEmptyError
from airflow_provider_llmbeam.pipeline.batch_inference.manifest import BatchManifest, Sums, digest_of
from airflow_provider_llmbeam.pipeline.measure.estimate.estimate import Estimate, SampleUsage
from airflow_provider_llmbeam.pipeline.measure.estimate.run import make_estimate
from airflow_provider_llmbeam.pipeline.measure.estimate.ways import deadline_at
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.counts import NANO

#: Number of prompts that are sent online first, so that a wrong prompt or model is found in a minute and not after
#: hours. The job keeps their answers.
PILOT_ROWS = 32


def send_pilot(spec: JobSpec, now: float) -> tuple[Estimate, BatchManifest] | None:
    """Sends the pilot, as ordinary requests: none at the flex tier.

    Args:
        spec: The job.
        now: Unix time.

    Returns:
        What the rest costs and takes online, and a manifest without files; `None` for a source without rows.
    """
    try:
        estimate = make_estimate(spec, PILOT_ROWS)
    except SourceEmptyError:
        return None  # the job decides by `source.on_empty`
    manifest = BatchManifest(
        prompts=digest_of(spec),
        model=spec.model.model_dump(mode="json", exclude={"labels"}),
        created_at=now,
        deadline_at=deadline_at(spec, now),
        online_seconds=estimate.duration_seconds,
        pilot=_sums_of(estimate.sample_usage),
        pilot_tiers=estimate.sample_usage.service_tiers,
        guard={} if estimate.guard is None else estimate.guard.sample,
    )
    return estimate, manifest


def _sums_of(pilot: SampleUsage) -> Sums:
    return Sums(
        answered=pilot.requests - pilot.failed,
        failed=pilot.failed,
        input_tokens=pilot.input_tokens,
        output_tokens=pilot.output_tokens,
        cost_nano_usd=round((pilot.cost_usd or 0.0) * NANO),
        unpriced=pilot.requests if pilot.cost_usd is None else 0,
    )
