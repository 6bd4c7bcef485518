"""Runs a job in this process, or submits it."""

from __future__ import annotations

import gc
import logging
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError, LLMBeamError
from airflow_provider_llmbeam.pipeline.batch_inference.ways import flex_until, moment
from airflow_provider_llmbeam.pipeline.launch.client import check_guard, check_model, check_privacy
from airflow_provider_llmbeam.pipeline.launch.failure import errors_of_job
from airflow_provider_llmbeam.spec.identity import spec_digest
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.model.parameters import ignored
from airflow_provider_llmbeam.spec.protocol.manifest import encoded_page
from airflow_provider_llmbeam.spec.runner import DataflowRunner, DetachedRunner, workers_have_keys
from airflow_provider_llmbeam.spec.runner.flink import FlinkRunner
from airflow_provider_llmbeam.spec.runner.portable import PortableRunner

if TYPE_CHECKING:
    import apache_beam as beam

    from airflow_provider_llmbeam.pipeline.alerts.decide import RunFacts
    from airflow_provider_llmbeam.pipeline.alerts.raised import RaisedAlerts
    from airflow_provider_llmbeam.pipeline.batch_inference.manifest import BatchManifest
    from airflow_provider_llmbeam.pipeline.batch_inference.run import BatchInference
    from airflow_provider_llmbeam.pipeline.reporting.progress_objects import ProgressReader

_log = logging.getLogger("llmbeam")


@dataclass(frozen=True, slots=True)
class PreparedJob:
    """A job that can run.

    Attributes:
        pipeline: Its pipeline.
        workers: Progress of its workers elsewhere.
        batch: Its batch inference; `None` without any.
    """

    pipeline: beam.Pipeline
    workers: ProgressReader
    batch: BatchInference | None


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
    with _prepared(spec, beam_options, waits=waits) as prepared:
        from airflow_provider_llmbeam.pipeline.alerts.raised import RaisedAlerts
        from airflow_provider_llmbeam.pipeline.alerts.watch import watched_by
        from airflow_provider_llmbeam.pipeline.reporting.known_rows import known_rows_told
        from airflow_provider_llmbeam.pipeline.reporting.progress import shown_progress
        from airflow_provider_llmbeam.pipeline.reporting.report import Report

        raised = RaisedAlerts(spec, alerts_path)
        batch = prepared.batch
        watches = (known_rows_told(spec), watched_by(spec.alerts, _run_facts(spec, batch), raised))
        progress = shown_progress(others=prepared.workers.counts, watches=watches)
        budget = nullcontext() if batch is None else batch.counted_in_budget()
        with prepared.workers, progress, _with_failed_report(spec, raised), budget, errors_of_job(spec):
            _wait(_started(prepared.pipeline, spec), spec)
        if batch is not None:
            batch.clean_up()
        from airflow_provider_llmbeam.pipeline import storage

        uri = spec.paths.skipped_uri if storage.exists(spec.paths.skipped_uri) else spec.paths.report_uri
    report = Report.model_validate_json(storage.read(uri))
    raised.raise_new(report.alerts)
    raised.forget()
    if report.comparison is not None:
        _log.info("%s", report.comparison.line)
    _log.info("Report: %s", report.report_html_uri or report.report_uri)
    return report.manifest()


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
            f"{spec.runner.type!r}. Nothing was sent or billed."
        )
    with _prepared(spec, beam_options) as prepared:
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
    from apache_beam.options.pipeline_options import GoogleCloudOptions

    cloud = prepared.pipeline.options.view_as(GoogleCloudOptions)
    started = _started(prepared.pipeline, spec)
    # With this option, which Google's launcher of Flex Templates passes, Beam submits no job: it writes one to a
    # file, which the launcher submits. Source: `DataflowApplicationClient.create_job` of Beam 2.77.
    job = {"template": cloud.template_location} if cloud.template_location else {"id": started.job_id()}
    return {**job, "name": cloud.job_name, "project": cloud.project, "location": cloud.region}


@contextmanager
def _prepared(spec: JobSpec, beam_options: Sequence[str], *, waits: bool = True) -> Iterator[PreparedJob]:
    """Builds the pipeline of a job, which can run in the body; an invalid job is rejected before.

    Batch inference comes before the pipeline, which uses its answers.
    """
    from airflow_provider_llmbeam.pipeline.launch.reachable import check_reachable

    check_reachable(spec)
    # Beam takes a second to import; an invalid spec is rejected without it.
    with importing_beam():
        import apache_beam as beam

        from airflow_provider_llmbeam.pipeline import sinks, storage
        from airflow_provider_llmbeam.pipeline.audit.load import check as check_audit
        from airflow_provider_llmbeam.pipeline.audit.load import loaded
        from airflow_provider_llmbeam.pipeline.batch_inference.manifest import manifest_uri
        from airflow_provider_llmbeam.pipeline.build import build
        from airflow_provider_llmbeam.pipeline.context import RunContext
        from airflow_provider_llmbeam.pipeline.launch.mark import LaunchMark
        from airflow_provider_llmbeam.pipeline.launch.runner import runner_of, workers_are_elsewhere
        from airflow_provider_llmbeam.pipeline.launch.worker_package import build_worker_package
        from airflow_provider_llmbeam.pipeline.launch.writable import check_writable
        from airflow_provider_llmbeam.pipeline.lease import leased
        from airflow_provider_llmbeam.pipeline.media.uploads import uploads_deleted
        from airflow_provider_llmbeam.pipeline.prefix_cache import prefix_cache
        from airflow_provider_llmbeam.pipeline.reporting.progress_objects import ProgressReader
        from airflow_provider_llmbeam.pipeline.sinks.ownership import claim, refuse_other_owner

        is_on_dataflow = isinstance(spec.runner, DataflowRunner)
        is_detached = isinstance(spec.runner, DetachedRunner)
        if not workers_have_keys(spec.runner):
            check_model(spec)
            check_guard(spec)
            check_privacy(spec)
        for uri in spec.paths.private_uris:
            storage.make_private(uri)
        sinks.check(spec)
        check_audit(spec)
        if not is_on_dataflow:
            check_writable(spec)
    with ExitStack() as until_end:
        directory = until_end.enter_context(tempfile.TemporaryDirectory(prefix="llmbeam-"))
        package = build_worker_package(Path(directory), spec) if is_on_dataflow else None
        runner, options = runner_of(spec, beam_options, package)
        try:
            pipeline = beam.Pipeline(runner=runner, options=options)
        except (ValueError, ImportError, AttributeError) as error:  # of a runner that does not exist
            reason = str(error).rstrip(".")
            raise JobSpecError(f"The options of Beam: {reason}. Nothing was sent or billed.") from error
        are_elsewhere = workers_are_elsewhere(spec, runner, options)
        workers = ProgressReader(
            spec.paths.progress_uri if are_elsewhere else None, spec_digest(spec) if is_detached else None
        )
        with preparation(spec):
            # Dataflow, and the submission to Flink, run one job of a name at a time
            launcher = None if is_detached else until_end.enter_context(leased(spec))
            until_end.enter_context(loaded(spec))
            for uri in (
                spec.paths.stop_uri,
                spec.paths.skipped_uri,
                spec.paths.failed_uri,
                spec.paths.failed_html_uri,
            ):
                if storage.exists(uri):  # of an earlier job, which has ended
                    storage.delete([uri])
            # The manifest is of a try whose `inference.mode` was another one.
            begins = spec.inference.needs_pilot or storage.exists(manifest_uri(spec))
        batch, manifest = None, None
        if begins:
            from airflow_provider_llmbeam.pipeline.batch_inference.run import begin

            with errors_of_job(spec):
                batch, manifest = begin(spec, lambda: beam.Pipeline(runner=runner, options=options), waits=waits)
        if manifest is not None:
            spec = manifest.left_of(spec)
        # After batch inference only its rest is left, of a few rows, unless the mode is 'online' now.
        has_rest = manifest is not None and manifest.files and spec.inference.mode != "online"
        until_end.enter_context(uploads_deleted(spec))
        cache = None if has_rest else until_end.enter_context(prefix_cache(spec))
        with preparation(spec):
            now = time.time()
            context = RunContext(
                started_at=now,
                batch_since=None if manifest is None else manifest.created_at,
                progress_prefix=workers.prefix,
                launcher=launcher if are_elsewhere else None,
                mark=LaunchMark.of(spec),
                cached_head=None if cache is None else cache.cached_head,
                flex_until=_end_of_flex(spec, manifest, now),
                stop_uri=spec.paths.stop_uri,
            )
            build(pipeline, spec, context, manifest, cache)
            (refuse_other_owner if is_detached else claim)(spec)
        for name in ignored(spec.generation, spec.model):
            _log.warning("%s %s ignores `generation.%s`.", spec.model.type, spec.model.name, name)
        _log.info(
            "Job %r: %s %s, server %s, journal %s",
            spec.name,
            spec.model.type,
            spec.model.name,
            spec.server,
            spec.paths.journal_uri,
        )
        yield PreparedJob(pipeline, workers, batch)


def _end_of_flex(spec: JobSpec, manifest: BatchManifest | None, now: float) -> float:
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


@contextmanager
def preparation(spec: JobSpec) -> Iterator[None]:
    """Reports a fault of the body, which sends nothing, such as a missing bucket; only a 4xx is final."""
    from airflow_provider_llmbeam.pipeline.launch.writable import is_final, service_error

    try:
        yield
    except LLMBeamError:
        raise
    except Exception as raised:
        error = service_error(raised)
        message = f"{type(error).__name__}: {error}".rstrip(".")
        raise (JobSpecError if is_final(error) else JobFailedError)(
            f"Job {spec.name!r} could not be prepared: {message}. Nothing was sent or billed."
        ) from raised


@contextmanager
def _with_failed_report(spec: JobSpec, raised: RaisedAlerts) -> Iterator[None]:
    """Raises the alerts of a job that failed after its last row, and adds the page of its report to the error."""
    from airflow_provider_llmbeam.pipeline import storage
    from airflow_provider_llmbeam.pipeline.reporting.report import Report

    try:
        yield
    except LLMBeamError as error:
        if storage.exists(spec.paths.failed_uri):
            raised.raise_new(Report.model_validate_json(storage.read(spec.paths.failed_uri)).alerts)
        if storage.exists(spec.paths.failed_html_uri):
            _log.info("Report of the failed run: %s", spec.paths.failed_html_uri)
            error.page = page_at(spec.paths.failed_html_uri)
        raise


def _run_facts(spec: JobSpec, batch: BatchInference | None) -> RunFacts:
    from airflow_provider_llmbeam.pipeline.alerts.decide import RunFacts
    from airflow_provider_llmbeam.pipeline.measure.estimate.ways import deadline_at

    manifest = None if batch is None else batch.manifest
    return RunFacts(
        job=spec.name,
        budget_usd=spec.limits.budget_usd,
        spent_usd=0.0 if manifest is None else manifest.budgeted_usd,
        deadline_at=deadline_at(spec, time.time()) if manifest is None else manifest.deadline_at,
    )


def page_at(uri: str) -> dict[str, Any] | None:
    """Returns the page of a report for Airflow; `None` if it cannot be read."""
    from airflow_provider_llmbeam.pipeline import storage

    try:
        return encoded_page(storage.read(uri).decode(), uri)
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


@contextmanager
def importing_beam() -> Iterator[None]:
    """Imports Beam, and the modules that the body imports.

    The first import is made without garbage collection, and its objects are excluded from later collections. The
    collector traversed 400,000 objects of Beam and google-genai again and again: 0.4 s of 1.9 s for the imports,
    0.4 s at the exit of the interpreter, and pauses of the event loop. `gc.freeze` also keeps all garbage of the
    moment, so a process that runs many jobs must not call it for each: 20 jobs with BigQuery kept 1,500 sockets.
    """
    if "apache_beam" in sys.modules:
        yield
        return
    gc.disable()
    try:
        import apache_beam  # noqa: F401

        yield
    finally:
        gc.freeze()
        gc.enable()
