"""How good the estimate was."""

from __future__ import annotations

import logging

from pydantic import BaseModel, ConfigDict

from airflow_provider_llmbeam.pipeline.estimate.estimate import Estimate, estimate_uri, read_estimate
from airflow_provider_llmbeam.spec.job import JobSpec

_log = logging.getLogger(__name__)


class ComparedFigure(BaseModel):
    """One number of an estimate beside what it was.

    Attributes:
        estimated: Before.
        actual: Of this run.
        ratio: Actual over estimated, per prompt asked: a run that had a part of the answers already, or an
            estimate of more rows, compares as well. `None` where one of them is nothing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    estimated: float
    actual: float
    ratio: float | None


class EstimateAccuracy(BaseModel):
    """An estimate beside the truth; prompts that the estimate itself had asked are in neither.

    Attributes:
        made_at: Unix time of the estimate.
        error_ratio: That it gave itself, 95 %.
        requests: Prompts; no ratio, since it says how much of the job this run was.
        input_tokens: Billed.
        output_tokens: Billed.
        cost_usd: Of both; `None` where no price was known.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    made_at: float
    error_ratio: float | None
    requests: ComparedFigure
    input_tokens: ComparedFigure
    output_tokens: ComparedFigure
    cost_usd: ComparedFigure | None


def found_estimate(spec: JobSpec) -> Estimate | None:
    """The estimate of a job, if it can be read: a report does without it."""
    try:
        return read_estimate(spec)
    except Exception as error:  # noqa: BLE001 - a filesystem may raise anything, and the answers are worth more
        _log.warning("%r is not compared with this run: %s", estimate_uri(spec), str(error).partition("\n")[0])
        return None


def compare(
    estimate: Estimate, *, prompts: int, input_tokens: int, output_tokens: int, cost_usd: float | None
) -> EstimateAccuracy:
    """Compares an estimate with a run.

    Args:
        estimate: Of the same job.
        prompts: Asked by this run, answered or not.
        input_tokens: Billed in this run.
        output_tokens: Billed in this run.
        cost_usd: Of this run.
    """

    def compared(estimated: float, actual: float) -> ComparedFigure:
        ratio = None
        if estimated and actual and prompts and estimate.requests:
            ratio = round((actual / prompts) / (estimated / estimate.requests), 4)
        return ComparedFigure(estimated=estimated, actual=actual, ratio=ratio)

    has_cost = estimate.cost_usd is not None and cost_usd is not None
    return EstimateAccuracy(
        made_at=estimate.made_at,
        error_ratio=estimate.error_ratio,
        requests=ComparedFigure(estimated=estimate.requests, actual=prompts, ratio=None),
        input_tokens=compared(estimate.input_tokens, input_tokens),
        output_tokens=compared(estimate.output_tokens, output_tokens),
        cost_usd=compared(estimate.cost_usd or 0.0, cost_usd or 0.0) if has_cost else None,
    )
