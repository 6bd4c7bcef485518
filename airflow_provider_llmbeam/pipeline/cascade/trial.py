"""What a cascade would save: it is calibrated, and nothing else is sent."""

from __future__ import annotations

from collections.abc import Iterator

import apache_beam as beam
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from pydantic import BaseModel

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.cascade.calibration import Calibration
from airflow_provider_llmbeam.pipeline.cascade.run import begin_cascade, describe
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.counts import usd
from airflow_provider_llmbeam.spec.protocol.steps import CascadeTable


class CascadeTrial(BaseModel):
    """What the calibration of a cascade has found.

    Attributes:
        names: Names of the stages and of `model`.
        rows: Number of rows from which the sample was drawn.
        calibration: The calibration; `None` if it would cost more than it saves.
        text: What the log of a run says of it.
        cost_usd: Cost of what was sent now.
        max_points: Number of lines of the table.
    """

    names: tuple[str, ...]
    rows: int
    calibration: Calibration | None
    text: list[str]
    cost_usd: float
    max_points: int

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """Yields the table, and what the cascade saves."""
        calibration = self.calibration
        if calibration is not None and calibration.curve:
            *stages, model = self.names
            widths = [max(len(name), 10) for name in stages]
            head = "  ".join(f"{name:>{width}}" for name, width in zip(stages, widths, strict=True))
            yield f"   {head}  to {model:<12}  agreement  at least"
            step = max(1, -(-len(calibration.curve) // self.max_points))
            chosen = next((each for each in calibration.curve if each.thresholds == calibration.thresholds), None)
            shown = [*calibration.curve[::step]]
            if chosen is not None and chosen not in shown:
                shown = [each for each in calibration.curve if each in shown or each == chosen]
            for point in shown:
                scores = "  ".join(
                    f"{'–' if score is None else f'{score:.4g}':>{width}}"
                    for score, width in zip(point.thresholds, widths, strict=True)
                )
                mark = "→" if point == chosen else " "
                held = "" if point.is_certified else "  not certain enough"
                yield (
                    f" {mark} {scores}  {point.escalated:>{len(model) + 3}.1%}  {point.agreement:>18.2%}  "
                    f"{point.low:>8.2%}{held}"
                )
        yield from self.text
        if calibration is not None and calibration.asked and calibration.cost_per_row_by_model:
            with_stages, by_model = (
                cost * self.rows for cost in (calibration.cost_per_row, calibration.cost_per_row_by_model)
            )
            yield (
                f"Cost of {self.rows:,} different prompts: about {usd(with_stages)} with the cascade, "
                f"{usd(by_model)} by {self.names[-1]} alone."
            )
        yield f"The calibration has cost {usd(self.cost_usd)} now. Nothing else was sent; a run uses its answers."


def try_cascade(spec: JobSpec, table: CascadeTable) -> CascadeTrial:
    """Calibrates the cascade of a job, unless an earlier run has, and sends nothing else.

    Args:
        spec: The job.
        table: What is shown of it.

    Raises:
        JobSpecError: The job has no cascade, or its rows are refused; nothing was sent.
        JobFailedError: A server left prompts of the sample unanswered; a retry sends only these.
        BudgetExceededError: The budget is spent.
    """
    if spec.cascade is None:
        raise JobSpecError("`cascade`: the job has none. Expected cheaper `stages` before `model`.")
    begun = begin_cascade(spec, lambda: beam.Pipeline(runner=FnApiRunner()))
    calibration = begun.run.calibration
    return CascadeTrial(
        names=spec.cascade.names(spec.model),
        rows=begun.run.rows,
        calibration=calibration,
        text=[*describe(spec, begun.run)],
        cost_usd=begun.spent_usd,
        max_points=table.max_points,
    )
