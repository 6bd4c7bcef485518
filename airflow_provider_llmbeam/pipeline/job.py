"""Runs a job in this process, or submits it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from apache_beam.options.pipeline_options import GoogleCloudOptions

from airflow_provider_llmbeam.exceptions import JobSpecError, LLMBeamError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.alerts import RaisedAlerts, RunFacts, watch_for_alerts
from airflow_provider_llmbeam.pipeline.batch_inference.run import BatchInference
from airflow_provider_llmbeam.pipeline.launch.failure import errors_of_job
from airflow_provider_llmbeam.pipeline.measure.estimate.ways import deadline_at
from airflow_provider_llmbeam.pipeline.prepared_job import PreparedJob, prepared_job
from airflow_provider_llmbeam.pipeline.reporting.history import watch_known_rows
from airflow_provider_llmbeam.pipeline.reporting.progress import show_progress
from airflow_provider_llmbeam.pipeline.reporting.report import Report
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.manifest import closing_lines, encode_page
from airflow_provider_llmbeam.spec.runner import DataflowRunner, DetachedRunner, FlinkRunner, PortableRunner

_log = logging.getLogger("llmbeam")


def run(
    spec: JobSpec, beam_options: Sequence[str] = (), *, waits: bool = True, alerts_path: Path | None = None
) -> dict[str, Any]:
    """Runs a job and waits for it.

    Args:
        spec: The job.
        beam_options: Options of Beam.
        waits: Whether batch inference is waited for in this process.
        alerts_path: File to which a line is added for each alert; `None` for none.

    Returns:
        The manifest of the report.

    Raises:
        JobSpecError: The job cannot start; nothing was sent.
        JobError: The job failed, or no row was answered.
        BatchPendingError: Batch inference has not ended, and this process does not wait for it.
    """
    with prepared_job(spec, beam_options, waits=waits) as prepared:
        raised = RaisedAlerts(spec, alerts_path)
        batch = prepared.batch
        watches = (watch_known_rows(spec), watch_for_alerts(spec.alerts, _run_facts(spec, batch), raised))
        progress = show_progress(others=prepared.workers.counts, watches=watches)
        budget = nullcontext() if batch is None else batch.count_in_budget()
        with prepared.workers, progress, _with_failed_report(spec, raised), budget, errors_of_job(spec):
            _wait(_started(prepared.pipeline, spec), spec)
        if batch is not None:
            batch.clean_up()
        uri = spec.paths.skipped_uri if storage.exists(spec.paths.skipped_uri) else spec.paths.report_uri
    report = Report.model_validate_json(storage.read(uri))
    manifest = report.manifest()
    raised.raise_new(report.alerts)
    raised.forget()
    if report.comparison is not None:
        _log.info("%s", report.comparison.line)
    if report.rows.skipped:
        counts, reasons = report.rows, report.skipped_words
        _log.info("%s of %s rows were skipped: %s.", f"{counts.skipped:,}", f"{counts.read:,}", reasons)
    if (whole := report.all_rows) is not None:
        line = "With the first run: %s of %s rows answered, %s failed."
        _log.info(line, f"{whole.answered:,}", f"{whole.read:,}", f"{whole.dead_letter:,}")
    for line in closing_lines(manifest):
        _log.info("%s", line)
    _log.info("Report: %s", report.report_html_uri or report.report_uri)
    return manifest


def submit(spec: JobSpec, beam_options: Sequence[str] = ()) -> dict[str, str]:
    """Submits a job to Dataflow or Flink, where at most one job of a name runs.

    Returns:
        `id`, and `name`, `project` and `location` on Dataflow or `rest_url` on Flink, of the job, new or running;
        in the launcher of a Flex Template `template`, the file with the job, in place of `id`.

    Raises:
        JobSpecError: Dataflow rejected the job; nothing was sent.
        JobFailedError: It is not known whether Dataflow accepted the job. A retry finds it, or submits it.
    """
    if not isinstance(spec.runner, DetachedRunner):
        raise JobSpecError(
            f"`runner.type`: only a job with runner 'dataflow' or 'flink' can be submitted; got "
            f"{spec.runner.type!r}."
        )
    with prepared_job(spec, beam_options, waits=True) as prepared:
        submitted = _submitted(prepared, spec)
        if prepared.batch is not None:  # of an earlier try; a later run does not count its answers again
            prepared.batch.clean_up()
    return submitted


def _submitted(prepared: PreparedJob, spec: JobSpec) -> dict[str, str]:
    if isinstance(spec.runner, FlinkRunner):
        from airflow_provider_llmbeam.pipeline.launch.flink import submit_once

        prepared.workers.remove_earlier()
        with errors_of_job(spec):
            return {"id": submit_once(prepared.pipeline, spec, spec.runner), "rest_url": spec.runner.rest_url}
    cloud = prepared.pipeline.options.view_as(GoogleCloudOptions)
    started = _started(prepared.pipeline, spec)
    # With this option, which Google's launcher of Flex Templates passes, Beam submits no job: it writes one to a
    # file, which the launcher submits. Source: `DataflowApplicationClient.create_job` of Beam 2.77.
    job = {"template": cloud.template_location} if cloud.template_location else {"id": started.job_id()}
    return {**job, "name": cloud.job_name, "project": cloud.project, "location": cloud.region}


@contextmanager
def _with_failed_report(spec: JobSpec, raised: RaisedAlerts) -> Iterator[None]:
    """Raises the alerts of a job that failed after its last row, and adds the page of its report to the error."""
    try:
        yield
    except LLMBeamError as error:
        if storage.exists(spec.paths.failed_uri):
            report = Report.model_validate_json(storage.read(spec.paths.failed_uri))
            raised.raise_new(report.alerts)
            error.report = report.manifest()
        if storage.exists(spec.paths.failed_html_uri):
            _log.info("Report of the failed run: %s", spec.paths.failed_html_uri)
            error.page = page_at(spec.paths.failed_html_uri)
        raise


def _run_facts(spec: JobSpec, batch: BatchInference | None) -> RunFacts:
    manifest = None if batch is None else batch.manifest
    return RunFacts(
        job=spec.name,
        budget_usd=spec.limits.budget_usd,
        spent_usd=0.0 if manifest is None else manifest.budgeted_usd,
        deadline_at=deadline_at(spec, time.time()) if manifest is None else manifest.deadline_at,
    )


def page_at(uri: str) -> dict[str, Any] | None:
    """Returns the page of a report for Airflow; `None` if it cannot be read."""
    try:
        return encode_page(storage.read(uri).decode(), uri)
    except Exception as error:  # noqa: BLE001 - the job is over
        _log.warning("The report %r cannot be read, and is not shown in Airflow: %s", uri, error)
        return None


def _started(pipeline: Any, spec: JobSpec) -> Any:
    if isinstance(spec.runner, FlinkRunner):
        from airflow_provider_llmbeam.pipeline.launch import flink

        return flink.started(pipeline, spec, spec.runner)
    if not isinstance(spec.runner, DataflowRunner):
        return pipeline.run()
    from airflow_provider_llmbeam.pipeline.launch.dataflow import submit_once

    return submit_once(pipeline, spec)


def _wait(result: Any, spec: JobSpec) -> None:
    if not isinstance(spec.runner, PortableRunner):
        result.wait_until_finish()
        return
    from airflow_provider_llmbeam.pipeline.launch.portable import cancelled_at_interrupt

    with cancelled_at_interrupt(result, spec.runner):
        result.wait_until_finish()
