"""Compares the estimate of a job with one of its runs."""

from __future__ import annotations

import logging

from airflow_provider_llmbeam.pipeline.measure.estimate.estimate import Estimate, read_estimate
from airflow_provider_llmbeam.pipeline.reporting.report import ComparedFigure, EstimateAccuracy, RunUsage
from airflow_provider_llmbeam.spec.job import JobSpec

_log = logging.getLogger(__name__)


def estimate_accuracy(spec: JobSpec, usage: RunUsage) -> EstimateAccuracy | None:
    """Compares the estimate of a job with a run.

    Args:
        spec: The job.
        usage: Usage of the run.

    Returns:
        `None` if the job has no estimate, or if it cannot be read: the report is complete without it.
    """
    try:
        estimate = read_estimate(spec)
    except Exception as error:  # noqa: BLE001 - a filesystem may raise anything, and the answers are worth more
        _log.warning(
            "%r is not compared with this run: %s", spec.paths.estimate_uri, str(error).partition("\n")[0]
        )
        return None
    return None if estimate is None else compare(estimate, usage)


def compare(estimate: Estimate, usage: RunUsage) -> EstimateAccuracy:
    """Compares an estimate with the usage of a run of the same job."""
    prompts, planned, cost_usd = usage.prompts, estimate.planned_cost_usd, usage.cost_usd

    def compared(estimated: float, actual: float) -> ComparedFigure:
        ratio = None
        if estimated and actual and prompts and estimate.requests:
            ratio = round((actual / prompts) / (estimated / estimate.requests), 4)
        return ComparedFigure(estimated=estimated, actual=actual, ratio=ratio)

    return EstimateAccuracy(
        made_at=estimate.made_at,
        error_ratio=estimate.error_ratio,
        requests=ComparedFigure(estimated=estimate.requests, actual=prompts, ratio=None),
        input_tokens=compared(estimate.input_tokens, usage.input_tokens),
        output_tokens=compared(estimate.output_tokens, usage.output_tokens),
        cost_usd=None if planned is None or cost_usd is None else compared(planned, cost_usd),
    )
