"""What precedes the run of a job: its checks, its lease, its batch inference, and its pipeline."""

from __future__ import annotations

import logging
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import apache_beam as beam
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline import sinks, storage
from airflow_provider_llmbeam.pipeline.audit.load import check_audit, load_audit_around
from airflow_provider_llmbeam.pipeline.batch_inference.manifest import BatchManifest
from airflow_provider_llmbeam.pipeline.batch_inference.run import BatchInference, begin
from airflow_provider_llmbeam.pipeline.batch_inference.ways import flex_until, moment
from airflow_provider_llmbeam.pipeline.build import build
from airflow_provider_llmbeam.pipeline.cascade.run import begin_cascade
from airflow_provider_llmbeam.pipeline.context import RunContext
from airflow_provider_llmbeam.pipeline.features import features_of
from airflow_provider_llmbeam.pipeline.launch.bucket_keys import check_bucket_keys
from airflow_provider_llmbeam.pipeline.launch.failure import errors_of_job, preparation
from airflow_provider_llmbeam.pipeline.launch.keys import check_model
from airflow_provider_llmbeam.pipeline.launch.mark import LaunchMark
from airflow_provider_llmbeam.pipeline.launch.reachable import check_reachable
from airflow_provider_llmbeam.pipeline.launch.runner import runner_of, workers_are_elsewhere
from airflow_provider_llmbeam.pipeline.launch.worker_package import build_worker_package
from airflow_provider_llmbeam.pipeline.launch.writable import check_writable, make_directories
from airflow_provider_llmbeam.pipeline.lease import hold_lease
from airflow_provider_llmbeam.pipeline.media.uploads import delete_uploads_after
from airflow_provider_llmbeam.pipeline.prefix_cache import marked_head, store_head
from airflow_provider_llmbeam.pipeline.reporting.progress import ProgressReader
from airflow_provider_llmbeam.pipeline.shared_budget import check_budget
from airflow_provider_llmbeam.pipeline.sinks.ownership import claim, refuse_other_owner
from airflow_provider_llmbeam.spec.identity import spec_digest
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.runner import DataflowRunner, DetachedRunner, workers_have_keys

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


@contextmanager
def prepared_job(spec: JobSpec, beam_options: Sequence[str], *, waits: bool) -> Iterator[PreparedJob]:
    """Builds the pipeline of a job, which can run in the body; an invalid job is rejected before.

    Batch inference comes before the pipeline, which uses its answers.

    Args:
        spec: The job.
        beam_options: Options of Beam.
        waits: Whether batch inference is waited for in this process.
    """
    storage.use_key(spec.kms_key_name)
    _check(spec)
    is_detached = isinstance(spec.runner, DetachedRunner)
    with ExitStack() as until_end:
        directory = until_end.enter_context(tempfile.TemporaryDirectory(prefix="llmbeam-"))
        package = build_worker_package(Path(directory), spec) if isinstance(spec.runner, DataflowRunner) else None
        runner, options = runner_of(spec, beam_options, package)
        try:
            pipeline = beam.Pipeline(runner=runner, options=options)
        except (ValueError, ImportError, AttributeError) as error:  # of a runner that does not exist
            reason = str(error).rstrip(".")
            raise JobSpecError(f"The options of Beam: {reason}.") from error
        are_elsewhere = workers_are_elsewhere(spec, runner, options)
        workers = ProgressReader(
            spec.paths.progress_uri if are_elsewhere else None, spec_digest(spec) if is_detached else None
        )
        with preparation(spec):
            # Dataflow, and the submission to Flink, run one job of a name at a time.
            # This process sends the sample of a cascade, though.
            needs_lease = not is_detached or spec.cascade is not None
            launcher = until_end.enter_context(hold_lease(spec)) if needs_lease else None
            until_end.enter_context(load_audit_around(spec))
            paths = spec.paths
            for uri in (paths.stop_uri, paths.skipped_uri, paths.failed_uri, paths.failed_html_uri):
                if storage.exists(uri):  # of an earlier job, which has ended
                    storage.delete([uri])
            # The manifest is of a try whose `inference.mode` was another one.
            begins = spec.inference.needs_pilot or storage.exists(spec.paths.manifest_uri)
        cascade = None
        if spec.cascade is not None:
            refuse_other_owner(spec)
            # In this process where the job of the name is the one that is submitted.
            drawn_by = (FnApiRunner(), None) if is_detached else (runner, options)
            with errors_of_job(spec):
                cascade = begin_cascade(spec, lambda: beam.Pipeline(*drawn_by))
            spec = cascade.with_remaining_budget(spec)
        batch, manifest = None, None
        if begins:
            with errors_of_job(spec):
                batch, manifest = begin(
                    spec, lambda: beam.Pipeline(runner=runner, options=options), waits=waits, cascade=cascade
                )
        if manifest is not None:
            spec = manifest.with_remaining_budget(spec)
        # After batch inference only its rest is left, of a few rows, unless the mode is 'online' now.
        has_rest = manifest is not None and manifest.files and spec.inference.mode != "online"
        until_end.enter_context(delete_uploads_after(spec))
        cache = None if has_rest else until_end.enter_context(store_head(spec))
        with preparation(spec):
            now = time.time()
            context = RunContext(
                started_at=now,
                batch_since=None if manifest is None else manifest.created_at,
                progress_prefix=workers.prefix,
                launcher=launcher if are_elsewhere and not is_detached else None,
                mark=LaunchMark.of(spec),
                cached_head=marked_head(spec) if cache is None else cache.cached_head,
                flex_until=_end_of_flex(spec, manifest, now),
                stop_uri=spec.paths.stop_uri,
                cascade=None if cascade is None else cascade.run,
            )
            build(pipeline, spec, context, manifest, cache, cascade)
            (refuse_other_owner if is_detached else claim)(spec)
        for name in spec.model.parameters.find_ignored(spec.generation):
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


def _check(spec: JobSpec) -> None:
    """Refuses a job that cannot start, and makes its directories.

    Raises:
        JobSpecError: It cannot start; nothing was sent.
    """
    for field, value in (
        ("sinks", spec.sinks),
        ("sink.embed", getattr(spec.sink, "embed", None)),
        ("limits.per_key", spec.limits.per_key),
    ):
        if value:
            raise JobSpecError(f"`{field}`: must be left out of a job that is run; it is for `llmbeam stream`.")
    check_reachable(spec)
    check_keys(spec)
    check_bucket_keys(spec)
    make_directories(spec)
    check_outputs(spec)
    if not isinstance(spec.runner, DataflowRunner):
        check_writable(spec)


def check_keys(spec: JobSpec) -> None:
    """Checks the keys that this process needs.

    Raises:
        JobSpecError: One is missing.
    """
    if not workers_have_keys(spec.runner):
        check_model(spec)
        for feature in features_of(spec):
            feature.check_keys()


def check_outputs(spec: JobSpec) -> None:
    """Checks the sink of a job, its audit and the budget that it shares; writes nothing.

    Raises:
        JobSpecError: One of them does not fit.
    """
    sinks.check(spec)
    check_audit(spec)
    check_budget(spec)


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
