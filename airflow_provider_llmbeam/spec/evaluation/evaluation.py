"""The evaluation of a job on a golden set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from airflow_provider_llmbeam.spec.base import FieldFaultError, SpecModel
from airflow_provider_llmbeam.spec.evaluation.metric import (
    ExactMetric,
    JudgeMetric,
    LabelF1Metric,
    Metric,
    NumericMetric,
)
from airflow_provider_llmbeam.spec.fields.names import MetricName
from airflow_provider_llmbeam.spec.fields.suggestion import nearest
from airflow_provider_llmbeam.spec.model import Model
from airflow_provider_llmbeam.spec.source import StoredSource

Share = Annotated[float, Field(ge=0, le=1)]


class Evaluation(SpecModel):
    """The evaluation of a job: a golden set through its prompt, model and parameters.

    Attributes:
        golden: The golden set: rows with the columns that the prompt uses, and columns with expected values; at
            most 5,000.
        metrics: Metrics by name. A text in place of a metric is its `type`.
        minimum: Smallest accepted score by name of a metric, from 0 to 1.
        max_drop: Largest accepted difference to the scores of the last accepted evaluation of the same golden set
            and metrics; 0 accepts none that is lower. `None`: they are not compared.
        on_failure: What follows if a score is not accepted. `fail` fails the task, without a retry; `skip` skips
            it, and with it the tasks after it; `report` only says so.
        max_cases: Maximum number of wrong answers that are listed.
        seed: Seed of the bootstrap intervals.
    """

    golden: StoredSource
    metrics: Annotated[Mapping[MetricName, Metric], Field(min_length=1)]
    minimum: Mapping[str, Share] = Field(default_factory=dict)
    max_drop: Share | None = None
    on_failure: Literal["fail", "skip", "report"] = "fail"
    max_cases: Annotated[int, Field(ge=0, le=1000)] = 20
    seed: int = 0

    @model_validator(mode="after")
    def _thresholds_are_of_metrics(self) -> Self:
        for name in self.minimum:
            if name not in self.metrics:
                known = ", ".join(f"`{metric}`" for metric in self.metrics)
                instead = nearest(name, set(self.metrics)) or f"the metrics are {known}"
                raise FieldFaultError(f"minimum.{name}", f"there is no such metric; {instead}")
        return self

    @property
    def expected_columns(self) -> tuple[str, ...]:
        """Columns of the golden set with expected values."""
        compared = (ExactMetric, LabelF1Metric, NumericMetric)
        return tuple(
            metric.column_of(name) for name, metric in self.metrics.items() if isinstance(metric, compared)
        )

    @property
    def models(self) -> tuple[Model, ...]:
        """Models of the judges."""
        return tuple(metric.model for metric in self.metrics.values() if isinstance(metric, JudgeMetric))
