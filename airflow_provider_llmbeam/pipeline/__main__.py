"""The command line: `python -m airflow_provider_llmbeam.pipeline --spec JOB.json [Beam options]`."""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError, LLMBeamError, error_name
from airflow_provider_llmbeam.pipeline.in_process import (
    compare,
    diff,
    estimate,
    evaluate,
    forget,
    preview,
    review,
)
from airflow_provider_llmbeam.pipeline.job import page_at, run, submit
from airflow_provider_llmbeam.pipeline.launch.interruption import signals_handled, what_remains
from airflow_provider_llmbeam.pipeline.launch.log import Redactor, configure_logging
from airflow_provider_llmbeam.pipeline.launch.parent import end_with_parent
from airflow_provider_llmbeam.providers.errors import BatchPendingError
from airflow_provider_llmbeam.spec.evaluation import (
    AnswerSample,
    Comparison,
    Evaluation,
    GoldenAddition,
    PreviewSample,
)
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.model import key_variables
from airflow_provider_llmbeam.spec.model.environment import with_base_urls
from airflow_provider_llmbeam.spec.safety import RowsToForget

_log = logging.getLogger("llmbeam")

EXIT_OK, EXIT_FAILED, EXIT_BAD_SPEC = 0, 1, 2
#: As EX_TEMPFAIL of sysexits.h.
EXIT_PENDING = 75
EXIT_INTERRUPTED = 128 + signal.SIGINT  # as of a shell
#: As the default of `skip_on_exit_code` of Airflow's BashOperator.
EXIT_SKIPPED = 99
#: What is measured of a job, or removed, in this process.
Measured = Evaluation | Comparison | PreviewSample | AnswerSample | GoldenAddition | RowsToForget
#: Exit codes of an evaluation that did not pass, by its `on_failure`.
_EXITS = {"fail": EXIT_FAILED, "skip": EXIT_SKIPPED, "report": EXIT_OK}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one job; other options submit it, estimate, preview, evaluate, compare or review it, or forget rows.

    Returns:
        0 if the job is complete or submitted; 1 if it failed after its start, or its evaluation did not pass; 2 if
        it could not start; 99 if it was skipped, since its source has no rows or its evaluation says so; 75 if it
        is to be continued (`--defer`); 130 after Ctrl-C or SIGTERM.
    """
    options, beam_options = _parser().parse_known_args(argv)
    redactor = Redactor()
    configure_logging(redactor, with_time=not options.child)
    if options.child:
        end_with_parent()
    if (reason := _unwritable(options.result)) is not None:
        _log.error("`--result` %r cannot be written: %s. Nothing was sent or billed.", str(options.result), reason)
        return EXIT_BAD_SPEC
    spec = None
    try:
        spec = _spec(options.spec)
        measured = _measured(options)
        others = measured.models if isinstance(measured, Evaluation | Comparison) else ()
        redactor.variables = (*spec.secret_variables, *(name for model in others for name in key_variables(model)))
        with signals_handled():
            outcome = _outcome(spec, measured, options, beam_options)
    except LLMBeamError as error:
        message = redactor(str(error))
        _log.error("%s", message)
        outcome = {"error": {"type": error_name(error), "message": message, "page": error.page}}
        _write_outcome(options.result, outcome)
        return EXIT_BAD_SPEC if isinstance(error, JobSpecError) else EXIT_FAILED
    except KeyboardInterrupt:
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # it names each request in flight
        _log.error("Interrupted. %s", redactor(what_remains(spec)))
        return EXIT_INTERRUPTED
    _write_outcome(options.result, outcome)
    if "batch" in outcome:
        return EXIT_PENDING
    if "evaluation" in outcome:
        return EXIT_OK if outcome["evaluation"]["passed"] else _EXITS[outcome["evaluation"]["on_failure"]]
    reason = outcome.get("report", {}).get("skipped_because")
    if reason is not None:
        _log.warning("Skipped: %s", redactor(reason))
    return EXIT_OK if reason is None else EXIT_SKIPPED


def _outcome(
    spec: JobSpec,
    measured: Measured | None,
    options: argparse.Namespace,
    beam_options: Sequence[str],
) -> dict[str, Any]:
    if isinstance(measured, Evaluation):
        return {"evaluation": evaluate(spec, measured)}
    if isinstance(measured, Comparison):
        return {"comparison": compare(spec, measured)}
    if isinstance(measured, PreviewSample):
        return {"preview": preview(spec, measured)}
    if isinstance(measured, RowsToForget):
        return {"forgotten": forget(spec, measured)}
    if measured is not None:
        return {"review": review(spec, measured)}
    if options.diff is not None:
        return {"difference": diff(spec, _spec(options.diff))}
    if options.estimate:
        return {"estimate": estimate(spec, 32 if options.sample_size is None else options.sample_size)}
    if options.sample_size is not None:
        raise JobSpecError("`--sample-size`: only an estimate has a sample. Nothing was sent or billed.")
    if options.submit:
        return {"job": submit(spec, beam_options)}
    try:
        report = run(spec, beam_options, waits=not options.defer, alerts_path=options.alerts)
    except BatchPendingError as pending:
        return {"batch": {"wait_seconds": pending.wait_seconds}}
    uri = report["report_html_uri"]
    return {"report": report, "page": page_at(uri) if options.child and uri is not None else None}


def _spec(address: str) -> JobSpec:
    if address.startswith("gs://"):
        from airflow_provider_llmbeam.pipeline.launch.reachable import check_uri_reachable

        check_uri_reachable("--spec", address)
    return with_base_urls(JobSpec.from_json(_content(address)), os.environ, _log)


def _content(address: str) -> bytes:
    try:
        return _read(address) if "://" in address else Path(address).read_bytes()
    except OSError as error:
        raise JobSpecError(f"The job spec cannot be read: {error}. Nothing was sent or billed.") from error
    except Exception as raised:  # of a service, or of Beam for a filesystem that it lacks
        from airflow_provider_llmbeam.pipeline.launch.writable import is_final, service_error

        found = service_error(raised)
        is_service = address.startswith("gs://") and not is_final(found)
        raise (JobFailedError if is_service else JobSpecError)(
            f"`--spec` {address!r} cannot be read: {str(found).rstrip('.')}. Expected a file, local or on gs://. "
            "Nothing was sent or billed."
        ) from raised


def _measured(options: argparse.Namespace) -> Measured | None:
    """Reads what is measured of the job, or removed, in this process, if anything is."""
    kinds: tuple[tuple[Path | None, type[Measured]], ...] = (
        (options.evaluate, Evaluation),
        (options.compare, Comparison),
        (options.preview, PreviewSample),
        (options.sample_answers, AnswerSample),
        (options.add_golden, GoldenAddition),
        (options.forget, RowsToForget),
    )
    for path, kind in kinds:
        if path is not None:
            return with_base_urls(kind.parse(_json_of(path)), os.environ, _log)
    return None


def _json_of(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise JobSpecError(
            f"{str(path)!r} cannot be read as JSON: {error}. Nothing was sent or billed."
        ) from error


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
    parser.add_argument("--alerts", type=Path, help="add a line of JSON to this file for each alert")
    parser.add_argument(
        "--submit", action="store_true", help="submit the job to Dataflow or Flink and do not wait"
    )
    parser.add_argument(
        "--defer",
        action="store_true",
        help="do not wait for batch inference: end with exit code 75; the same command continues",
    )
    parser.add_argument("--estimate", action="store_true", help="estimate the job and do not run it")
    parser.add_argument(
        "--sample-size",
        type=_count,
        metavar="N",
        help="with --estimate: number of prompts sent to the model; the job keeps their answers (default: 32)",
    )
    parser.add_argument(
        "--evaluate",
        type=Path,
        metavar="EVALUATION.json",
        help="evaluate the job on the golden set that this file names, and do not run it",
    )
    parser.add_argument(
        "--compare",
        type=Path,
        metavar="COMPARISON.json",
        help="compare the job with the other one that this file describes, and run neither",
    )
    parser.add_argument(
        "--preview",
        type=Path,
        metavar="SAMPLE.json",
        help="show some rows with their prompts and answers, and do not run the job",
    )
    parser.add_argument(
        "--sample-answers",
        type=Path,
        metavar="SAMPLE.json",
        help="select answers of the job for a review by people",
    )
    parser.add_argument(
        "--add-golden",
        type=Path,
        metavar="VERDICTS.json",
        help="add the rows that people have reviewed to a golden set",
    )
    parser.add_argument(
        "--forget",
        type=Path,
        metavar="ROWS.json",
        help="remove the answers of some rows from what the job has written, and do not run it",
    )
    parser.add_argument(
        "--diff", metavar="OLD.json", help="compare the job with an earlier spec of it, and send nothing"
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


def _unwritable(path: Path | None) -> str | None:
    """Returns why the outcome cannot be written, before the job is paid for; `None` if it can."""
    if path is None:
        return None
    if path.is_dir():
        return "it is a directory"
    staged = path.with_suffix(".part")
    try:
        staged.touch()
        staged.unlink()
    except OSError as error:
        return str(error)
    return None


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
    gc.set_threshold(10_000)  # with that of Python, 700, the collector takes 2 % of a job and 4 % of a small one
    sys.excepthook = _log_uncaught
    raise SystemExit(main())
