"""The door: `python -m airflow_provider_llmbeam.pipeline --spec JOB.json [Beam options]`."""

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
    """Runs one job to its end; with `--submit` hands it to Dataflow, with `--estimate` says what it will take.

    Returns:
        0 when the job is complete, or taken; 1 when it failed after it started, 2 when it could not start.
    """
    options, beam_options = _parser().parse_known_args(argv)
    _configure_logging(with_time=not options.child)
    if options.child:
        threading.Thread(target=_exit_at_end_of_input, name="parent-watch", daemon=True).start()
    try:
        spec = _spec(options.spec)
        outcome = _outcome(spec, options, beam_options)
    except LLMBeamError as error:
        _log.error("%s", error)
        _hand_back(options.result, {"error": {"type": type(error).__name__, "message": str(error)}})
        return EXIT_BAD_SPEC if isinstance(error, JobSpecError) else EXIT_FAILED
    _hand_back(options.result, outcome)
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
        JobError: The job did not reach its end, or not one row was answered.
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
                # Beam re-raises through some thirty frames of its own; the last few say where it was.
                traceback.print_exception(cause, limit=-4, chain=False)
                raise JobFailedError(
                    f"Job {spec.name!r} failed: {type(cause).__name__}: {cause} What was answered is kept in "
                    f"{spec.journal_uri!r}; a retry asks only for the rest."
                ) from error
    report = Report.model_validate_json(_read(f"{spec.output_uri}report.json"))
    _log.info("Report: %s", report.report_uri)
    return report.manifest()


def submit(spec: JobSpec, beam_options: Sequence[str] = ()) -> dict[str, str]:
    """Hands a job to Dataflow, which runs at most one of its name at a time.

    Returns:
        `id`, `name`, `project` and `location` of the job, be it new or one that is running already.

    Raises:
        JobSpecError: Dataflow did not take it; nothing was sent.
        JobFailedError: It cannot be told whether Dataflow took it. A retry finds the job, or submits it.
    """
    if not isinstance(spec.runner, DataflowRunner):
        raise JobSpecError(
            f"`runner.type`: only 'dataflow' takes a job; got {spec.runner.type!r}. Nothing was sent or billed."
        )
    with _pipeline(spec, beam_options) as pipeline:
        from apache_beam.options.pipeline_options import GoogleCloudOptions

        cloud = pipeline.options.view_as(GoogleCloudOptions)
        job_id = _started(pipeline, spec).job_id()
        return {"id": job_id, "name": cloud.job_name, "project": cloud.project, "location": cloud.region}


def estimate(spec: JobSpec, sample_size: int) -> dict[str, Any]:
    """Says what a job will take; see `pilot.make_estimate`.

    Args:
        spec: The job.
        sample_size: Prompts to ask the model; the job keeps their answers.

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
        raise _unready(spec, error) from error


@contextmanager
def _pipeline(spec: JobSpec, beam_options: Sequence[str]) -> Iterator[Any]:
    """The job's pipeline, ready to run while the body runs; what cannot work is refused before."""
    # Beam takes a second to import; a bad spec should not wait for it.
    with _beam():
        import apache_beam as beam

        from airflow_provider_llmbeam.pipeline import sinks
        from airflow_provider_llmbeam.pipeline.build import build
        from airflow_provider_llmbeam.pipeline.launch.runner import runner_of
        from airflow_provider_llmbeam.pipeline.launch.worker_package import build_worker_package

        is_remote = isinstance(spec.runner, DataflowRunner)
        if not is_remote:  # else the workers have the keys, and this machine need not
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
            raise _unready(spec, error) from error
        _log.info("Job %r: %s %s, journal %s", spec.name, spec.model.type, spec.model.name, spec.journal_uri)
        yield pipeline


def _unready(spec: JobSpec, error: Exception) -> LLMBeamError:
    """Of a fault while the graph is built, such as a bucket that is not there; a refusal comes again."""
    while details := getattr(error, "exception_details", None):  # Beam's own, around that of the service
        error = next(iter(details.values()))
    code = getattr(error, "code", None)
    is_refusal = isinstance(code, int) and 400 <= code < 500 and code not in (408, 429)
    words = f"{type(error).__name__}: {error}".rstrip(".")
    return (JobSpecError if is_refusal else JobFailedError)(
        f"Job {spec.name!r} could not be made ready: {words}. Nothing was sent or billed."
    )


def _started(pipeline: Any, spec: JobSpec) -> Any:
    if not isinstance(spec.runner, DataflowRunner):
        return pipeline.run()
    from airflow_provider_llmbeam.pipeline.launch.dataflow import submit_once

    return submit_once(pipeline, spec)


@contextmanager
def _beam() -> Iterator[None]:
    """Where Beam is imported."""
    with _no_garbage():
        import apache_beam  # noqa: F401

        yield


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Keeps the garbage collector away from what is imported meanwhile, now and later: none of it is garbage.

    It looked through Beam's and Gemini's 400,000 objects again and again: 0.4 s of 1.9 s for the imports, 0.4 s
    at the interpreter's end, and a pause of the event loop now and then.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def check_model(spec: JobSpec) -> None:
    """Opens the model's client once, before a row is read: a missing key shows here.

    Raises:
        JobSpecError: The client cannot be opened.
    """
    from airflow_provider_llmbeam.engine.backends import open_backend

    open_backend(spec.model, spec.generation, spec.prompt.output_schema, spec.embedding)


def _spec(place: str) -> JobSpec:
    try:
        return JobSpec.from_json(_read(place) if "://" in place else Path(place).read_bytes())
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
        description="Run one job. Every other option is passed on to Beam, e.g. --runner or --temp_location.",
        allow_abbrev=False,
    )
    parser.add_argument("--spec", required=True, metavar="JOB.json", help="the job spec; may be on gs://")
    parser.add_argument("--result", type=Path, help="write the outcome here, as JSON")
    parser.add_argument("--submit", action="store_true", help="hand the job to Dataflow, and do not wait for it")
    parser.add_argument("--estimate", action="store_true", help="say what the job will take, and do not run it")
    parser.add_argument(
        "--sample-size",
        type=_count,
        default=32,
        metavar="N",
        help="with --estimate: prompts to ask the model, whose answers the job keeps; 0 asks none (default: 32)",
    )
    parser.add_argument(
        "--child",
        action="store_true",
        help="end when standard input ends, since the parent died; leave the time of log lines to the parent",
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
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)  # what matters of it is raised, too
    logging.getLogger("apache_beam.runners.dataflow.dataflow_runner").setLevel(logging.INFO)  # the job's messages


def _exit_at_end_of_input() -> None:
    """Ends the process when the parent's end of the pipe closes, also after its kill -9.

    The answers so far are in the journal.
    """
    # Not through sys.stdin: a thread that holds its lock is fatal to the interpreter's own end.
    while os.read(0, 4096):
        pass
    os._exit(EXIT_FAILED)


def _hand_back(path: Path | None, outcome: dict[str, Any]) -> None:
    """Writes the outcome atomically: a reader sees all of it or nothing."""
    if path is None:
        if "error" not in outcome:
            print(json.dumps(next(iter(outcome.values())), indent=2))
        return
    aside = path.with_suffix(".part")
    aside.write_text(json.dumps(outcome))
    aside.replace(path)


if __name__ == "__main__":
    raise SystemExit(main())
