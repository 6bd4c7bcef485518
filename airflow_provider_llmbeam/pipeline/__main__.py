"""The command line: `python -m airflow_provider_llmbeam.pipeline --spec JOB.json [Beam options]`."""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from airflow_provider_llmbeam.batch.errors import BatchPendingError
from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError, LLMBeamError
from airflow_provider_llmbeam.manifest import encoded_page
from airflow_provider_llmbeam.pipeline.launch.failure import errors_of_job
from airflow_provider_llmbeam.pipeline.launch.interruption import what_remains
from airflow_provider_llmbeam.pipeline.launch.log import Redactor, configure_logging
from airflow_provider_llmbeam.pipeline.launch.parent import end_with_parent
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.model.environment import with_base_url
from airflow_provider_llmbeam.spec.runner import DataflowRunner

_log = logging.getLogger("llmbeam")

EXIT_OK, EXIT_FAILED, EXIT_BAD_SPEC = 0, 1, 2
#: As EX_TEMPFAIL of sysexits.h.
EXIT_PENDING = 75
EXIT_INTERRUPTED = 128 + signal.SIGINT  # as of a shell
#: As the default of `skip_on_exit_code` of Airflow's BashOperator.
EXIT_SKIPPED = 99


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one job; with `--submit` it is submitted to Dataflow, with `--estimate` it is estimated.

    Returns:
        0 if the job is complete or submitted; 1 if it failed after its start; 2 if it could not start; 99 if it
        was skipped, since its source has no rows; 75 if it is to be continued (`--defer`); 130 after Ctrl-C.
    """
    options, beam_options = _parser().parse_known_args(argv)
    redactor = Redactor()
    configure_logging(redactor, with_time=not options.child)
    if options.child:
        end_with_parent()
    spec = None
    try:
        spec = _spec(options.spec)
        redactor.variables = spec.secret_variables
        outcome = _outcome(spec, options, beam_options)
    except LLMBeamError as error:
        message = redactor(str(error))
        _log.error("%s", message)
        _write_outcome(options.result, {"error": {"type": type(error).__name__, "message": message}})
        return EXIT_BAD_SPEC if isinstance(error, JobSpecError) else EXIT_FAILED
    except KeyboardInterrupt:
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # it names each request in flight
        _log.error("Interrupted. %s", redactor(what_remains(spec)))
        return EXIT_INTERRUPTED
    _write_outcome(options.result, outcome)
    if "batch" in outcome:
        return EXIT_PENDING
    reason = outcome.get("report", {}).get("skipped_because")
    if reason is not None:
        _log.warning("Skipped: %s", redactor(reason))
    return EXIT_OK if reason is None else EXIT_SKIPPED


def _outcome(spec: JobSpec, options: argparse.Namespace, beam_options: Sequence[str]) -> dict[str, Any]:
    if options.estimate:
        return {"estimate": estimate(spec, options.sample_size)}
    if options.submit:
        return {"job": submit(spec, beam_options)}
    try:
        report = run(spec, beam_options, waits=not options.defer)
    except BatchPendingError as pending:
        return {"batch": {"wait_seconds": pending.wait_seconds}}
    return {"report": report, "page": _page(report) if options.child else None}


def _page(report: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the page of a report for Airflow; `None` if there is none that can be read."""
    if (uri := report["report_html_uri"]) is None:
        return None
    try:
        return encoded_page(_read(uri).decode(), uri)
    except Exception as error:  # noqa: BLE001 - the job is complete
        _log.warning("The report %r cannot be read, and is not shown in Airflow: %s", uri, error)
        return None


def run(spec: JobSpec, beam_options: Sequence[str] = (), *, waits: bool = True) -> dict[str, Any]:
    """Runs a job and waits for it.

    Args:
        spec: The job.
        beam_options: Options of Beam.
        waits: Whether batch inference is waited for in this process.

    Returns:
        The manifest of the report.

    Raises:
        JobSpecError: The job cannot start; nothing was sent.
        JobError: The job failed, or no row was answered.
        BatchPendingError: Batch inference has not ended, and this process does not wait for it.
    """
    with _pipeline(spec, beam_options, waits=waits) as (pipeline, workers, batch):
        from airflow_provider_llmbeam.pipeline.reporting.progress import shown_progress
        from airflow_provider_llmbeam.pipeline.reporting.report import Report

        with workers, shown_progress(others=workers.counts), errors_of_job(spec):
            _started(pipeline, spec).wait_until_finish()
        if batch is not None:
            batch.clean_up()
        from airflow_provider_llmbeam.pipeline import storage

        uri = spec.skipped_uri if storage.exists(spec.skipped_uri) else spec.report_uri
    report = Report.model_validate_json(_read(uri))
    if report.comparison is not None:
        _log.info("%s", report.comparison.line)
    _log.info("Report: %s", report.report_html_uri or report.report_uri)
    return report.manifest()


def submit(spec: JobSpec, beam_options: Sequence[str] = ()) -> dict[str, str]:
    """Submits a job to Dataflow, which runs at most one job per name.

    Returns:
        `id`, `name`, `project` and `location` of the job, new or already running.

    Raises:
        JobSpecError: Dataflow rejected the job; nothing was sent.
        JobFailedError: It is not known whether Dataflow accepted the job. A retry finds it, or submits it.
    """
    if not isinstance(spec.runner, DataflowRunner):
        raise JobSpecError(
            f"`runner.type`: only a job with runner 'dataflow' can be submitted; got {spec.runner.type!r}. "
            "Nothing was sent or billed."
        )
    with _pipeline(spec, beam_options) as (pipeline, *_):
        from apache_beam.options.pipeline_options import GoogleCloudOptions

        cloud = pipeline.options.view_as(GoogleCloudOptions)
        job_id = _started(pipeline, spec).job_id()
        return {"id": job_id, "name": cloud.job_name, "project": cloud.project, "location": cloud.region}


def estimate(spec: JobSpec, sample_size: int) -> dict[str, Any]:
    """Estimates a job; see `estimate.run.make_estimate`.

    Args:
        spec: The job.
        sample_size: Number of prompts sent to the model; the job keeps their answers.

    Raises:
        JobSpecError: There is nothing to estimate; nothing was sent.
        NothingAnsweredError: The model answered none of the prompts.
    """
    from airflow_provider_llmbeam.pipeline.launch.reachable import check_reachable

    check_reachable(spec)
    with _beam():
        from airflow_provider_llmbeam.pipeline import storage
        from airflow_provider_llmbeam.pipeline.estimate.run import make_estimate
        from airflow_provider_llmbeam.pipeline.launch.writable import check_writable

    if sample_size and not spec.environment_secrets:
        check_model(spec)
    for uri in spec.private_uris:
        storage.make_private(uri)
    if sample_size:
        check_writable(spec, publishes=False)
    with _preparation(spec):
        return make_estimate(spec, sample_size).model_dump(mode="json")


@contextmanager
def _pipeline(spec: JobSpec, beam_options: Sequence[str], *, waits: bool = True) -> Iterator[tuple[Any, Any, Any]]:
    """Builds the pipeline of a job, which can run in the body; an invalid job is rejected before.

    Batch inference comes before the pipeline, which uses its answers.

    Yields:
        The pipeline, the `ProgressReader` of its workers, and the `BatchInference` or `None`.
    """
    from airflow_provider_llmbeam.pipeline.launch.reachable import check_reachable

    check_reachable(spec)
    # Beam takes a second to import; an invalid spec is rejected without it.
    with _beam():
        import apache_beam as beam

        from airflow_provider_llmbeam.pipeline import sinks, storage
        from airflow_provider_llmbeam.pipeline.build import build
        from airflow_provider_llmbeam.pipeline.launch.runner import runner_of, workers_are_elsewhere
        from airflow_provider_llmbeam.pipeline.launch.worker_package import build_worker_package
        from airflow_provider_llmbeam.pipeline.launch.writable import check_writable
        from airflow_provider_llmbeam.pipeline.lease import leased
        from airflow_provider_llmbeam.pipeline.prefix_cache import prefix_cache
        from airflow_provider_llmbeam.pipeline.reporting.progress_objects import ProgressReader
        from airflow_provider_llmbeam.pipeline.sinks.ownership import claim, refuse_other_owner

        is_remote = isinstance(spec.runner, DataflowRunner)
        if not is_remote:  # on Dataflow only the workers need the keys
            check_model(spec)
        for uri in spec.private_uris:
            storage.make_private(uri)
        sinks.check(spec)
        if not is_remote:
            check_writable(spec)
    with ExitStack() as until_end:
        directory = until_end.enter_context(tempfile.TemporaryDirectory(prefix="llmbeam-"))
        package = build_worker_package(Path(directory), spec) if is_remote else None
        runner, options = runner_of(spec, beam_options, package)
        pipeline = beam.Pipeline(runner=runner, options=options)
        are_elsewhere = workers_are_elsewhere(spec, runner, options)
        workers = ProgressReader(spec.progress_uri if are_elsewhere else None)
        with _preparation(spec):
            # Dataflow runs one job of a name at a time
            launcher = None if is_remote else until_end.enter_context(leased(spec))
            for uri in (spec.stop_uri, spec.skipped_uri):
                if storage.exists(uri):  # of an earlier job, which has ended
                    storage.delete([uri])
        batch, manifest = None, None
        if spec.inference.needs_pilot:
            from airflow_provider_llmbeam.pipeline.batch_inference.run import begin

            with errors_of_job(spec):
                batch, manifest = begin(spec, lambda: beam.Pipeline(runner=runner, options=options), waits=waits)
        if manifest is not None and (budget := spec.limits.budget_usd) is not None:
            limits = spec.limits.model_copy(update={"budget_usd": max(budget - manifest.cost_usd, 1e-9)})
            spec = spec.model_copy(update={"limits": limits})
        # After batch inference only its rest is left, of a few rows.
        has_rest = manifest is not None and manifest.files
        cache = None if has_rest else until_end.enter_context(prefix_cache(spec))
        with _preparation(spec):
            build(pipeline, spec, workers.prefix, launcher if are_elsewhere else None, manifest, cache)
            (refuse_other_owner if is_remote else claim)(spec)
        _log.info(
            "Job %r: %s %s, server %s, journal %s",
            spec.name,
            spec.model.type,
            spec.model.name,
            spec.server,
            spec.journal_uri,
        )
        yield pipeline, workers, batch


@contextmanager
def _preparation(spec: JobSpec) -> Iterator[None]:
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


def _started(pipeline: Any, spec: JobSpec) -> Any:
    if not isinstance(spec.runner, DataflowRunner):
        return pipeline.run()
    from airflow_provider_llmbeam.pipeline.launch.dataflow import submit_once

    return submit_once(pipeline, spec)


@contextmanager
def _beam() -> Iterator[None]:
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


def check_model(spec: JobSpec) -> None:
    """Opens the client of the model once, before a row is read, which fails if a key is missing.

    Raises:
        JobSpecError: The client cannot be opened.
    """
    from airflow_provider_llmbeam.engine.backends import open_backend

    open_backend(spec.model, spec.generation, spec.prompt.output_schema, spec.embedding)


def _spec(address: str) -> JobSpec:
    if address.startswith("gs://"):
        from airflow_provider_llmbeam.pipeline.launch.reachable import check_uri_reachable

        check_uri_reachable("--spec", address)
    try:
        spec = JobSpec.from_json(_read(address) if "://" in address else Path(address).read_bytes())
    except OSError as error:
        raise JobSpecError(f"The job spec cannot be read: {error}. Nothing was sent or billed.") from error
    return spec.model_copy(update={"model": with_base_url(spec.model, os.environ, _log)})


def _read(uri: str) -> bytes:
    from apache_beam.io.filesystems import FileSystems

    with FileSystems.open(uri) as file:
        return bytes(file.read())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m airflow_provider_llmbeam.pipeline",
        description="Run one job. Other options are passed to Beam, e.g. --runner or --temp_location.",
        allow_abbrev=False,
    )
    parser.add_argument("--spec", required=True, metavar="JOB.json", help="the job spec; may be on gs://")
    parser.add_argument("--result", type=Path, help="write the outcome to this file, as JSON")
    parser.add_argument("--submit", action="store_true", help="submit the job to Dataflow and do not wait for it")
    parser.add_argument(
        "--defer",
        action="store_true",
        help="do not wait for batch inference: end with exit code 75; the same command continues",
    )
    parser.add_argument("--estimate", action="store_true", help="estimate the job and do not run it")
    parser.add_argument(
        "--sample-size",
        type=_count,
        default=32,
        metavar="N",
        help="with --estimate: number of prompts sent to the model; the job keeps their answers (default: 32)",
    )
    parser.add_argument(
        "--child",
        action="store_true",
        help="end with the parent process, or when standard input is closed; log without timestamps",
    )
    return parser


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a number of prompts, 0 or more; got {text!r}")
    return int(text)


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Logs an error that ends the process, which Python would write without the formatter."""
    if isinstance(error, Exception):
        _log.critical("The job ended with an unexpected error.", exc_info=(kind, error, trace))
    else:  # such as a KeyboardInterrupt
        sys.__excepthook__(kind, error, trace)


def _write_outcome(path: Path | None, outcome: dict[str, Any]) -> None:
    """Writes the outcome atomically."""
    if path is None:
        if "error" not in outcome:
            _print(json.dumps(next(iter(outcome.values())), indent=2))
        return
    staged = path.with_suffix(".part")
    staged.write_text(json.dumps(outcome))
    staged.replace(path)


def _print(text: str) -> None:
    """Prints a text; a closed standard output does not make a failure of a job that is complete."""
    try:
        print(text, flush=True)
    except OSError as error:
        _log.warning("The result could not be printed: %s", error)
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - the interpreter flushes it again at its end


if __name__ == "__main__":
    sys.excepthook = _log_uncaught
    raise SystemExit(main())
