"""The command line: `python -m airflow_provider_llmbeam.pipeline --spec JOB.json [Beam options]`."""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow_provider_llmbeam.exceptions import (
    JobFailedError,
    JobSpecError,
    LLMBeamError,
)
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.model.price import price_of
from airflow_provider_llmbeam.spec.runner import DataflowRunner

_log = logging.getLogger("llmbeam")

EXIT_OK, EXIT_FAILED, EXIT_BAD_SPEC = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one job; with `--submit` it is submitted to Dataflow, with `--estimate` it is estimated.

    Returns:
        0 if the job is complete or submitted; 1 if it failed after its start; 2 if it could not start.
    """
    options, beam_options = _parser().parse_known_args(argv)
    _configure_logging(with_time=not options.child)
    if options.child:
        threading.Thread(target=_exit_at_end_of_input, name="parent-monitor", daemon=True).start()
    try:
        spec = _spec(options.spec)
        outcome = _outcome(spec, options, beam_options)
    except LLMBeamError as error:
        _log.error("%s", error)
        _write_outcome(options.result, {"error": {"type": type(error).__name__, "message": str(error)}})
        return EXIT_BAD_SPEC if isinstance(error, JobSpecError) else EXIT_FAILED
    _write_outcome(options.result, outcome)
    return EXIT_OK


def _outcome(spec: JobSpec, options: argparse.Namespace, beam_options: Sequence[str]) -> dict[str, Any]:
    if options.estimate:
        return {"estimate": estimate(spec, options.sample_size)}
    return {"job": submit(spec, beam_options)} if options.submit else {"report": run(spec, beam_options)}


def run(spec: JobSpec, beam_options: Sequence[str] = ()) -> dict[str, Any]:
    """Runs a job and waits for it.

    Returns:
        The manifest of the report.

    Raises:
        JobSpecError: The job cannot start; nothing was sent.
        JobError: The job failed, or no row was answered.
    """
    with _pipeline(spec, beam_options) as pipeline:
        from airflow_provider_llmbeam.pipeline.reporting.progress import shown_progress
        from airflow_provider_llmbeam.pipeline.reporting.report import Report

        with shown_progress(price_of(spec.model, spec.limits.price)):
            try:
                _started(pipeline, spec).wait_until_finish()
            except Exception as error:
                cause = _root(error)
                if isinstance(cause, LLMBeamError):
                    raise cause from None
                # Beam re-raises through some thirty frames of its own; the last frames locate the error.
                traceback.print_exception(cause, limit=-4, chain=False)
                raise JobFailedError(
                    f"Job {spec.name!r} failed: {type(cause).__name__}: {cause} The answers so far are in "
                    f"{spec.journal_uri!r}; a retry sends only the rest."
                ) from error
    report = Report.model_validate_json(_read(f"{spec.output_uri}report.json"))
    _log.info("Report: %s", report.report_uri)
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
    with _pipeline(spec, beam_options) as pipeline:
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
    with _beam():
        from airflow_provider_llmbeam.pipeline.estimate.run import make_estimate

    if sample_size and not spec.environment_secrets:
        check_model(spec)
    try:
        return make_estimate(spec, sample_size).model_dump(mode="json")
    except LLMBeamError:
        raise
    except Exception as error:
        raise _preparation_error(spec, error) from error


@contextmanager
def _pipeline(spec: JobSpec, beam_options: Sequence[str]) -> Iterator[Any]:
    """Builds the pipeline of a job, which can run in the body; an invalid job is rejected before."""
    # Beam takes a second to import; an invalid spec is rejected without it.
    with _beam():
        import apache_beam as beam

        from airflow_provider_llmbeam.pipeline import sinks
        from airflow_provider_llmbeam.pipeline.build import build
        from airflow_provider_llmbeam.pipeline.launch.runner import runner_of
        from airflow_provider_llmbeam.pipeline.launch.worker_package import build_worker_package

        is_remote = isinstance(spec.runner, DataflowRunner)
        if not is_remote:  # on Dataflow only the workers need the keys
            check_model(spec)
        sinks.check(spec)
    with tempfile.TemporaryDirectory(prefix="llmbeam-") as directory:
        package = build_worker_package(Path(directory), spec) if is_remote else None
        runner, options = runner_of(spec, beam_options, package)
        pipeline = beam.Pipeline(runner=runner, options=options)
        try:
            build(pipeline, spec)
        except LLMBeamError:
            raise
        except Exception as error:
            raise _preparation_error(spec, error) from error
        _log.info("Job %r: %s %s, journal %s", spec.name, spec.model.type, spec.model.name, spec.journal_uri)
        yield pipeline


def _preparation_error(spec: JobSpec, error: Exception) -> LLMBeamError:
    """Returns the error of a fault while the graph is built, such as a missing bucket; only a 4xx is final."""
    while details := getattr(error, "exception_details", None):  # an error of Beam around that of the service
        error = next(iter(details.values()))
    code = getattr(error, "code", None)
    is_rejection = isinstance(code, int) and 400 <= code < 500 and code not in (408, 429)
    message = f"{type(error).__name__}: {error}".rstrip(".")
    return (JobSpecError if is_rejection else JobFailedError)(
        f"Job {spec.name!r} could not be prepared: {message}. Nothing was sent or billed."
    )


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
    try:
        return JobSpec.from_json(_read(address) if "://" in address else Path(address).read_bytes())
    except OSError as error:
        raise JobSpecError(f"The job spec cannot be read: {error}. Nothing was sent or billed.") from error


def _root(error: BaseException) -> BaseException:
    while (earlier := error.__cause__ or (None if error.__suppress_context__ else error.__context__)) is not None:
        error = earlier
    return error


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
        help="exit when standard input is closed, as the parent has ended; log without timestamps",
    )
    return parser


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a number of prompts, 0 or more; got {text!r}")
    return int(text)


def _configure_logging(*, with_time: bool) -> None:
    line = "%(asctime)s %(message)s" if with_time else "%(message)s"
    logging.basicConfig(format=line, datefmt="%H:%M:%S", level=logging.ERROR, stream=sys.stderr)
    for name in ("llmbeam", "airflow_provider_llmbeam"):
        logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)  # its errors are raised, too
    logging.getLogger("apache_beam.runners.dataflow.dataflow_runner").setLevel(logging.INFO)  # messages of the job


def _exit_at_end_of_input() -> None:
    """Exits when the parent closes its end of the pipe, also after a kill -9 of the parent.

    The answers so far are in the journal.
    """
    # Not through sys.stdin: a thread that holds its lock aborts the exit of the interpreter.
    while os.read(0, 4096):
        pass
    os._exit(EXIT_FAILED)


def _write_outcome(path: Path | None, outcome: dict[str, Any]) -> None:
    """Writes the outcome atomically."""
    if path is None:
        if "error" not in outcome:
            print(json.dumps(next(iter(outcome.values())), indent=2))
        return
    staged = path.with_suffix(".part")
    staged.write_text(json.dumps(outcome))
    staged.replace(path)


if __name__ == "__main__":
    raise SystemExit(main())
