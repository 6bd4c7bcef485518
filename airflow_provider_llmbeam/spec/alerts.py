"""The alerts of a job: what raises one while it runs, and when it has ended."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from airflow_provider_llmbeam.spec.base import SpecModel

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Alerts(SpecModel):
    """What raises an alert: a warning in the log, a line in the report, and a call of the notifiers of the task.

    Attributes:
        budget_ratios: Ratios of `limits.budget_usd`; an alert when the cost has reached one.
        failed_row_ratio: An alert when more rows than this have failed. `None` for none: up to
            `limits.max_dead_letter_ratio` failed rows are part of a successful run.
        deadline: Whether there is an alert when the rest will not be answered by `inference.finish_by`.
        new_model_version: Whether there is an alert when the server names a version of the model that none of the
            last seven runs has.
        drift_psi: Population stability index of the labels, or of the lengths, of the answers from which on they
            have drifted from the last seven runs. By convention, 0.25 and more means that a lot has changed.
        latency_p95_ms: A stream raises an alert when the 95th percentile of its latency was above this in each
            window of `for_seconds`, in milliseconds.
        lag: A stream raises an alert when more messages than this have waited in each window of `for_seconds`.
        cost_usd_per_hour: A stream raises an alert when its last hour has cost more than this, in US dollars.
        for_seconds: Time for which a figure of a stream is above its limit before an alert is raised, and not
            above it before the alert is resolved, in seconds; `failed_row_ratio` is that of the messages of this
            time.
        on_drift: `ignore`; `warn` raises an alert; `fail` fails the task besides, and publishes no answers.
    """

    budget_ratios: tuple[Positive, ...] = (0.5, 0.8, 1.0)
    failed_row_ratio: Annotated[float, Field(ge=0, lt=1)] | None = None
    deadline: bool = True
    new_model_version: bool = True
    drift_psi: Positive = 0.25
    latency_p95_ms: Positive | None = None
    lag: Annotated[int, Field(ge=0)] | None = None
    cost_usd_per_hour: Positive | None = None
    for_seconds: Annotated[float, Field(gt=0, le=3600)] = 300.0
    on_drift: Literal["ignore", "warn", "fail"] = "warn"
