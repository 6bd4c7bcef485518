"""Reads the reports of runs and the export, and compares them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime

from pydantic import BaseModel, Field, ValidationError

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.bigquery_jobs import before_the_model
from airflow_provider_llmbeam.pipeline.measure.reconcile.billing_export import read_export
from airflow_provider_llmbeam.pipeline.measure.reconcile.differences import (
    Reconciliation,
    ReportedRun,
    reconcile,
)
from airflow_provider_llmbeam.pipeline.reporting.report import TokenCounts
from airflow_provider_llmbeam.spec.job.paths import REPORT_NAMES
from airflow_provider_llmbeam.spec.model.list_price import list_price
from airflow_provider_llmbeam.spec.model.price import Price

#: Names of the files that say what a run has cost.
_NAMES = (*(f"{name}.json" for name in REPORT_NAMES), "failed.json")


class _Model(BaseModel):
    type: str
    name: str
    project: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)


class _Limits(BaseModel):
    price: Price | None = None


class _Spec(BaseModel):
    model: _Model
    limits: _Limits = _Limits()


class _Report(BaseModel):
    """The fields of a report that are compared; one of an earlier version has them, too."""

    name: str
    started_at: float
    finished_at: float
    batch_began_at: float | None = None
    cost_usd: float | None
    tokens: TokenCounts
    service_tiers: dict[str, int] = Field(default_factory=dict)
    spec: _Spec

    def as_run(self) -> ReportedRun:
        model, tokens = self.spec.model, self.tokens
        return ReportedRun(
            name=self.name,
            labels=tuple(sorted(model.labels.items())),
            project=model.project,
            model=model.name.rpartition("/")[2],
            price=self.spec.limits.price,
            began_at=datetime.fromtimestamp(self.batch_began_at or self.started_at, UTC),
            finished_at=datetime.fromtimestamp(self.finished_at, UTC),
            cost_usd=self.cost_usd,
            prepaid_rows=self.service_tiers.get("provisioned", 0),
            tokens={"input": tokens.input - tokens.cached, "cached": tokens.cached, "output": tokens.output},
        )


def reconcile_bill(
    states: Sequence[str],
    export: str,
    *,
    since: datetime,
    until: datetime,
    now: datetime,
    max_difference_ratio: float,
    ignored: Collection[str] = (),
) -> Reconciliation:
    """Compares what runs have reported with what Cloud Billing has exported.

    Args:
        states: Directories below which the reports are: a `state_uri`, or the `uri` of a files sink.
        export: Table of the export, as `project.dataset.table`.
        since: Begin of the usage that is compared.
        until: Its end.
        now: Current time.
        max_difference_ratio: Bound of the difference.
        ignored: Causes that do not count for it.

    Raises:
        JobSpecError: No run with labels was reported in this time, or a report or the table cannot be read.
        JobFailedError: BigQuery failed, perhaps temporarily.
    """
    found = {(run.name, run.began_at): run for state in states for run in _read_runs(state)}
    runs = [run for run in found.values() if run.share_of(since, until)]
    projects = {run.project for run in runs if run.labels and run.project}
    if not projects:
        raise JobSpecError(
            f"None of the {len(found)} reports below {', '.join(map(repr, states))} is of a run from {since} to "
            f"{until} whose requests carry labels. Expected the `state_uri` of jobs that ask Gemini on Vertex AI, "
            "i.e. with `project`, and a time in which they ran."
        )
    return reconcile(
        runs,
        read_export(export, projects, since, until),
        since=since,
        until=until,
        now=now,
        price_at=lambda model, at: list_price("google", model, at),
        max_difference_ratio=max_difference_ratio,
        ignored=ignored,
    )


def _read_runs(state: str) -> Iterator[ReportedRun]:
    storage.check_scheme("STATE", state)
    with before_the_model(f"`STATE` {state!r}"):
        files = [file.path for file in storage.find(f"{state.rstrip('/')}/**")]
        reports = {uri: storage.read(uri) for uri in files if uri.rpartition("/")[2] in _NAMES}
    for uri, content in reports.items():
        try:
            yield _Report.model_validate_json(content).as_run()
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            field = ".".join(map(str, fault["loc"]))
            raise JobSpecError(f"{uri!r} is no report of a run: {field}: {fault['msg']}.") from error
