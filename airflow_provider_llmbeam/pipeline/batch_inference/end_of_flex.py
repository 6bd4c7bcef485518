"""The time until which the rows of a job are sent at the flex tier."""

from __future__ import annotations

import logging
import math

from airflow_provider_llmbeam.pipeline.batch_inference.manifest import BatchManifest
from airflow_provider_llmbeam.pipeline.batch_inference.ways import flex_until, moment
from airflow_provider_llmbeam.spec.job import JobSpec

_log = logging.getLogger("llmbeam")


def end_of_flex(spec: JobSpec, manifest: BatchManifest | None, now: float) -> float:
    """Returns the Unix time from which on rows are sent at the standard tier alone; infinity without a deadline.

    Args:
        spec: The job.
        manifest: What the pilot has shown; `None` without one.
        now: Unix time.
    """
    if spec.inference.service_tier != "flex_then_standard" or manifest is None or manifest.deadline_at is None:
        return math.inf
    end = flex_until(manifest.deadline_at, manifest.online_seconds)
    deadline = moment(manifest.deadline_at)
    if end <= now:
        online = manifest.online_seconds
        takes = "an unknown time" if online is None else f"about {online:,.0f} s"
        _log.info(
            "No row is sent at the flex tier: the rows take %s at the standard tier, and are needed by %s.",
            takes,
            deadline,
        )
    else:
        _log.info(
            "Rows are sent at the flex tier until %s, and after that at the standard tier: they are needed by %s.",
            moment(end),
            deadline,
        )
    return end
