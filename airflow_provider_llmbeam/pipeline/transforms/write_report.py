"""The report of a run: it is built, compared with those of earlier runs, and written as JSON and as a page."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.alerts import RunFacts, alerts_of_end
from airflow_provider_llmbeam.pipeline.batch_inference.manifest import BatchManifest
from airflow_provider_llmbeam.pipeline.cascade.state import RunCascade
from airflow_provider_llmbeam.pipeline.privacy.masker import masker_of
from airflow_provider_llmbeam.pipeline.reporting.build_report import build_report
from airflow_provider_llmbeam.pipeline.reporting.drift import compare_runs
from airflow_provider_llmbeam.pipeline.reporting.history import (
    RunSummary,
    add_to_history,
    read_history,
    summary_of,
)
from airflow_provider_llmbeam.pipeline.reporting.page import render_page
from airflow_provider_llmbeam.pipeline.reporting.report import EstimateAccuracy, Report, RowCounts, RunUsage
from airflow_provider_llmbeam.pipeline.reporting.serving import add_serving
from airflow_provider_llmbeam.pipeline.reporting.tally import Tally
from airflow_provider_llmbeam.pipeline.shared_budget import read_left_usd
from airflow_provider_llmbeam.pipeline.sinks.files import move_in
from airflow_provider_llmbeam.pipeline.sinks.merge_files import read_rows
from airflow_provider_llmbeam.pipeline.sources import queue
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.job.output_rules import reads_own_dead_letter
from airflow_provider_llmbeam.spec.protocol.alert import Alert

_log = logging.getLogger(__name__)


class ReportWriter:
    """Writes the report of a run.

    Args:
        spec: The job.
        started_at: Unix time at which the run began.
        estimate_accuracy: Compares the usage of the run with the estimate of the job, if there is one.
        batch: The batch inference of the run; `None` without any.
        deadline_at: Unix time by which the answers are needed; `None` without a deadline.
        cascade: The cascade of the run; `None` for a job without one.
    """

    def __init__(
        self,
        spec: JobSpec,
        started_at: float,
        estimate_accuracy: Callable[[JobSpec, RunUsage], EstimateAccuracy | None] | None = None,
        batch: BatchManifest | None = None,
        deadline_at: float | None = None,
        cascade: RunCascade | None = None,
    ) -> None:
        self.started_at = started_at
        self._spec = spec
        self._estimate_accuracy = estimate_accuracy
        self._batch = batch
        self._deadline_at = deadline_at
        self._cascade = cascade

    def write(self, tally: Tally, answers_uris: list[str], dead_letter: str | None = None) -> str:
        """Writes the report of a run whose answers are published, with its page; returns its JSON text.

        Args:
            tally: Sums over all rows.
            answers_uris: Addresses of the answers.
            dead_letter: Dead letter with those rows of the job before it that are still failed.
        """
        spec = self._spec
        report = self._build(tally, answers_uris, spec.paths.report_uri, spec.paths.report_html_uri)
        if dead_letter is not None and reads_own_dead_letter(spec):
            report = report.model_copy(update={"all_rows": _all_rows(spec, dead_letter)})
        report, summary = self._compare(report)
        report = add_serving(report, spec.model)
        report = self._write_page(report, spec.paths.report_html_uri)
        text = report.model_dump_json(indent=2)
        self.write_text(text, spec.paths.report_uri)  # the last file: whoever finds it finds all others
        add_to_history(spec, summary)
        return text

    def write_failed(self, tally: Tally, reason: str) -> None:
        """Writes the report of a run whose answers are not published, with its page."""
        spec = self._spec
        paths = spec.paths
        report = self._build(tally, [], paths.failed_uri, paths.failed_html_uri, failed_because=reason)
        report, _ = self._compare(report)
        report = add_serving(report, spec.model)
        report = self._write_page(report, spec.paths.failed_html_uri)
        self.write_text(report.model_dump_json(indent=2), spec.paths.failed_uri)

    def build_skipped(self, tally: Tally, reason: str) -> str:
        """Returns the JSON text of the report of a run that publishes nothing."""
        report = self._build(tally, [], self._spec.paths.skipped_uri, None, skipped_because=reason)
        return report.model_dump_json(indent=2)

    def find_alerts(self, tally: Tally) -> tuple[Alert, ...]:
        """Returns the alerts of a run before it is published.

        Raises:
            JobFailedError: The reports of earlier runs cannot be read.
        """
        report, _ = self._compare(self._build(tally, [], self._spec.paths.report_uri, None), is_needed=True)
        return report.alerts

    def _build(
        self,
        tally: Tally,
        answers_uris: list[str],
        uri: str,
        html_uri: str | None,
        *,
        skipped_because: str | None = None,
        failed_because: str | None = None,
    ) -> Report:
        spec, batch, cascade = self._spec, self._batch, self._cascade
        budget = spec.limits.budget_usd
        before = (batch.budgeted_usd if batch else 0.0) + (cascade.spent_usd if cascade else 0.0)
        return build_report(
            spec,
            tally=tally,
            answers_uris=answers_uris,
            dead_letter_uri=spec.paths.failed_rows_uri if failed_because else spec.paths.dead_letter_uri,
            report_uri=uri,
            report_html_uri=html_uri,
            started_at=self.started_at,
            finished_at=time.time(),
            estimate_accuracy=self._estimate_accuracy,
            skipped_because=skipped_because,
            failed_because=failed_because,
            # The spec has what calibration and batch inference have left of the budget.
            budget_usd=None if budget is None else budget + before,
            budget_left_usd=read_left_usd(spec),
            deadline_at=self._deadline_at,
            batch_began_at=batch.created_at if batch and batch.files else None,
            full_price=None if batch is None else batch.full_price(tally),
            messages_left=queue.messages_left(spec),
            masker=masker_of(spec),
            cascade=self._cascade,
        )

    def _compare(self, report: Report, *, is_needed: bool = False) -> tuple[Report, RunSummary]:
        """Returns a report with the comparison with earlier runs, and the summary that later runs compare with."""
        summary = summary_of(self._spec, report)
        history = read_history(self._spec, is_needed=is_needed)
        comparison = compare_runs(summary, history.without(summary.run))
        alerts = alerts_of_end(
            self._spec.alerts,
            RunFacts(job=report.name, budget_usd=report.budget_usd, deadline_at=report.deadline_at),
            rows=report.rows.read,
            failed=report.rows.dead_letter,
            cost_usd=report.cost_usd,
            comparison=comparison,
            now=report.finished_at,
        )
        changes = () if comparison is None else tuple(comparison.changes)
        compared = {"comparison": comparison, "changes": changes, "alerts": tuple(alerts)}
        return report.model_copy(update=compared), summary

    def _write_page(self, report: Report, uri: str) -> Report:
        try:
            self.write_text(render_page(report), uri)
        except Exception:  # noqa: BLE001 - a defect of the page must not fail a job whose answers are published
            _log.exception("The report could not be rendered as a page; %r is complete.", report.report_uri)
            return report.model_copy(update={"report_html_uri": None})
        return report

    def write_text(self, text: str, uri: str) -> None:
        """Writes a file in one step; nobody reads a part of it."""
        mime_type = "text/html; charset=utf-8" if uri.endswith(".html") else "application/json"
        staged = f"{self._spec.paths.staging_uri}{uri.rpartition('/')[2]}"
        with storage.create(staged, is_private=True, mime_type=mime_type) as file:
            file.write(text.encode())
        move_in({staged: uri})


def _all_rows(spec: JobSpec, dead_letter: str) -> RowCounts | None:
    """Returns the rows of the job whose failed rows were sent, as its report and the dead letter have them now.

    `None` if there is no such report, or if the dead letter has rows of other runs as well.
    """
    uri = next(uri for uri in spec.paths.report_uris if uri != spec.paths.report_uri)
    try:
        first = Report.model_validate_json(storage.read(uri)).rows
        failed = sum(1 for _ in read_rows({0: dead_letter}, "jsonl"))
    except Exception as error:  # noqa: BLE001 - the answers are published
        _log.warning("This report has no figures of the first run, as %r cannot be read: %s", uri, error)
        return None
    if failed > first.dead_letter:
        return None
    return RowCounts(
        read=first.read,
        answered=first.read - first.skipped - failed,
        dead_letter=failed,
        skipped=first.skipped,
    )
