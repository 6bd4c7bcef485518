"""The process of a job: `python -m airflow_provider_llmbeam.pipeline --spec JOB.json [Beam options]`."""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from airflow_provider_llmbeam import local_files
from airflow_provider_llmbeam.pipeline.command import EXIT_BAD_SPEC, Command, execute
from airflow_provider_llmbeam.pipeline.launch.parent import end_with_parent
from airflow_provider_llmbeam.spec.protocol.steps import STEPS

_log = logging.getLogger("llmbeam")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one job, submits it, or does a step of it; returns the exit code of `execute`."""
    options, beam_options = _parser().parse_known_args(argv)
    if options.child:
        end_with_parent()
    if (reason := _unwritable(options.result)) is not None:
        _log.error("`--result` %r cannot be written: %s. Nothing was sent or billed.", str(options.result), reason)
        return EXIT_BAD_SPEC
    code, outcome = execute(
        Command(
            spec=options.spec,
            step=options.step,
            given=options.input,
            beam_options=beam_options,
            defers=options.defer,
            alerts_path=options.alerts,
            page_path=options.page,
            is_child=options.child,
        )
    )
    for line in outcome.pop("log", ()):
        _log.info("%s", line)
    if outcome:
        write_outcome(options.result, outcome)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m airflow_provider_llmbeam.pipeline",
        description="Run one job. Other options are passed to Beam, e.g. --runner or --temp_location.",
        allow_abbrev=False,
    )
    parser.add_argument("--spec", required=True, metavar="JOB.json", help="the job spec; may be on gs://")
    parser.add_argument(
        "--step",
        choices=("run", "submit", *STEPS),
        default="run",
        help="what is done with the job: run it, submit it to Dataflow or Flink, or another step (default: run)",
    )
    parser.add_argument("--input", metavar="INPUT.json", help="what the step is asked for; may be on gs://")
    parser.add_argument("--result", type=Path, help="write the outcome to this file, as JSON")
    parser.add_argument("--alerts", type=Path, help="add a line of JSON to this file for each alert")
    parser.add_argument("--page", type=Path, help="write the page of a stream to this file, again and again")
    parser.add_argument(
        "--defer",
        action="store_true",
        help="do not wait for batch inference: end with exit code 75; the same command continues",
    )
    parser.add_argument(
        "--child",
        action="store_true",
        help="end with the parent process, or when standard input is closed; log without timestamps",
    )
    return parser


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
        local_files.create(staged).close()
        staged.unlink()
    except OSError as error:
        return str(error)
    return None


def write_outcome(path: Path | None, outcome: dict[str, Any]) -> None:
    """Writes an outcome atomically to a file, or prints it; an error is in the log already."""
    if path is None:
        if "error" not in outcome:
            _print(json.dumps(next(iter(outcome.values())), indent=2))
        return
    staged = path.with_suffix(".part")
    with local_files.create(staged, is_private=False) as file:
        file.write(json.dumps(outcome).encode())
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
