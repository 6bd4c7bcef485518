"""A command with a job: run it, submit it, or do a step of it. What `__main__` and `llmbeam` call."""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from airflow_provider_llmbeam.exceptions import (
    BudgetExceededError,
    JobFailedError,
    JobSpecError,
    LLMBeamError,
    SourceEmptyError,
    error_name,
)
from airflow_provider_llmbeam.pipeline.dag_task import open_dag_task
from airflow_provider_llmbeam.pipeline.launch.interruption import IdleInterrupt, signals_handled, what_remains
from airflow_provider_llmbeam.pipeline.launch.log import Redactor, configure_logging
from airflow_provider_llmbeam.providers.errors import BatchPendingError
from airflow_provider_llmbeam.spec.allowed import Allowed, check_allowed, read_options, variable_of
from airflow_provider_llmbeam.spec.base import SpecModel
from airflow_provider_llmbeam.spec.evaluation import Evaluation
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.model.server import with_base_urls
from airflow_provider_llmbeam.spec.protocol.steps import STEPS, reads_of
from airflow_provider_llmbeam.spec.source import SqlSource

_log = logging.getLogger("llmbeam")

EXIT_OK, EXIT_FAILED, EXIT_BAD_SPEC, EXIT_OVER_BUDGET = 0, 1, 2, 3
#: As EX_TEMPFAIL of sysexits.h.
EXIT_PENDING = 75
EXIT_INTERRUPTED = 128 + signal.SIGINT  # as of a shell
#: As the default of `skip_on_exit_code` of Airflow's BashOperator.
EXIT_SKIPPED = 99
#: Exit codes of an evaluation that did not pass, by its `on_failure`.
_EXITS = {"fail": EXIT_FAILED, "skip": EXIT_SKIPPED, "report": EXIT_OK}


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What is done with a job.

    Attributes:
        spec: Address of its spec, a local file or one on gs://; or `FILE::TASK`, a task of a Dag file.
        step: `run`, `submit`, or a key of `STEPS`.
        when: Day, time or id of the Dag run of a task. `None` is its newest run.
        map_index: Index of the instance of a mapped task.
        given: What a step is asked for: plain data, or the address of a file with its JSON. `None`: its defaults.
        beam_options: Options of Beam, of `run` and `submit`.
        defers: Whether `run` ends while batch inference goes on, with `EXIT_PENDING`.
        alerts_path: File to which `run` and `stream` add a line for each alert.
        page_path: File to which `stream` writes its page again and again.
        is_child: Whether a task waits for it, which has checked what the spec names, and shows the page of the
            report.
    """

    spec: str
    step: str = "run"
    when: str | None = None
    map_index: int | None = None
    given: Mapping[str, Any] | str | None = None
    beam_options: Sequence[str] = ()
    defers: bool = False
    alerts_path: Path | None = None
    page_path: Path | None = None
    is_child: bool = False


def execute(command: Command) -> tuple[int, dict[str, Any]]:
    """Executes a command; errors and interruptions are logged, without secrets.

    Returns:
        The exit code, and the outcome: `result` of a step, `log`, its lines for callers that print none,
        `job` of a submission, `report` of a run, `page` for a task, `batch` with `wait_seconds` if it is to be
        continued, `error`, or nothing after an interruption. The
        exit code is 0 if the job is complete or submitted; 1 if it failed after its start, or its evaluation did
        not pass; 2 if it could not start; 99 if it was skipped, since its source has no rows or its evaluation
        says so; 3 if an estimate or a check is over budget; 75 if it is to be continued; 130 after Ctrl-C or
        SIGTERM.
    """
    with ExitStack() as until_end:
        return _execute(command, until_end)


def _execute(command: Command, until_end: ExitStack) -> tuple[int, dict[str, Any]]:
    redactor = Redactor()
    configure_logging(redactor, with_time=not command.is_child)
    spec = None
    try:
        spec, given = until_end.enter_context(_job(command))
        others = getattr(given, "models", ())
        redactor.variables = (
            *spec.secret_variables,
            *(name for model in others for name in model.api.secret_variables),
        )
        with signals_handled():
            with _importing_beam():  # after the spec was read: Beam takes a second
                from airflow_provider_llmbeam.pipeline.job import page_at, run, submit
                from airflow_provider_llmbeam.pipeline.steps import run_step

            outcome: dict[str, Any]
            if given is not None:
                paths = {"alerts_path": command.alerts_path, "page_path": command.page_path}
                outcome = run_step(command.step, spec, given, **paths)
                if not command.is_child:
                    outcome.pop("page", None)
            elif command.step == "submit":
                outcome = {"job": submit(spec, command.beam_options)}
            else:
                waits, alerts_path = not command.defers, command.alerts_path
                report = run(spec, command.beam_options, waits=waits, alerts_path=alerts_path)
                uri = report["report_html_uri"]
                outcome = {"report": report, "page": page_at(uri) if command.is_child and uri else None}
    except BatchPendingError as pending:
        return EXIT_PENDING, {"batch": {"wait_seconds": pending.wait_seconds}}
    except LLMBeamError as error:
        message = redactor(str(error))
        skips = isinstance(error, SourceEmptyError) and spec is not None and spec.source.on_empty == "skip"
        if skips and not command.is_child:  # a task decides by itself
            _log.warning("Skipped: %s", message)
            return EXIT_SKIPPED, {}
        _log.error("%s", message)
        return _exit_code(error, command.step), {
            "error": {"type": error_name(error), "message": message, "page": error.page, "report": error.report}
        }
    except KeyboardInterrupt as interruption:
        if command.step == "stream" and isinstance(interruption, IdleInterrupt):
            _log.info("Stopped before the worker has begun: nothing was sent, and no position has moved.")
            return EXIT_OK, {}
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # it names each request in flight
        _log.error("Interrupted. %s", redactor(what_remains(spec)))
        return EXIT_INTERRUPTED, {}
    if isinstance(given, Evaluation) and not outcome["result"]["passed"]:
        return _EXITS[given.on_failure], outcome
    if reason := outcome.get("report", {}).get("skipped_because"):
        _log.warning("Skipped: %s", redactor(reason))
        return EXIT_SKIPPED, outcome
    is_over_budget = given is not None and outcome["result"].get("exceeds_budget")
    return EXIT_OVER_BUDGET if is_over_budget else EXIT_OK, outcome


def _exit_code(error: LLMBeamError, step: str) -> int:
    match error:
        case JobSpecError():
            return EXIT_BAD_SPEC
        case BudgetExceededError() if step == "estimate":  # its sample costs more
            return EXIT_OVER_BUDGET
    return EXIT_FAILED


def _check_allowed(*values: SpecModel | None) -> None:
    """Checks what the environment allows: who runs a spec chooses the other variables that it reads."""
    configured = read_options(lambda option: os.environ.get(variable_of(option), ""))
    allowed: Allowed = {**configured, "job_environment": ("*",)}
    for value in filter(None, values):
        check_allowed(value, allowed)


@contextmanager
def _importing_beam() -> Iterator[None]:
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


@contextmanager
def _job(command: Command) -> Iterator[tuple[JobSpec, SpecModel | None]]:
    """Provides the job of a command, and what its step is asked for.

    Raises:
        JobSpecError: One of them is not valid.
    """
    if not _is_task(command.spec):
        for option, value in (("--date", command.when), ("--map-index", command.map_index)):
            if value is not None:
                raise JobSpecError(f"`{option}`: the runs are those of a task, FILE::TASK; got {command.spec!r}.")
        spec = with_base_urls(JobSpec.from_json(_content("--spec", command.spec)), os.environ, _log)
        given = _read_given(command, spec)
        if not command.is_child:
            _check_allowed(spec, given)
        with nullcontext() if command.is_child else _stage_in_airflow(spec, command.step):
            yield spec, given
        return
    if command.step not in STEPS:
        raise JobSpecError(f"`{command.step}` takes JOB.json; Airflow runs a task, e.g. `airflow dags test`.")
    with open_dag_task(command.spec, command.step, when=command.when, map_index=command.map_index) as task:
        known = "As in run %r." if task.is_known else "There is no such run yet: the job is that of a new one, %r."
        _log.info(known, task.run_id)
        os.environ.update(task.environment)
        of_task = command if command.given is not None else replace(command, given=task.given)
        given = _read_given(of_task, task.spec)
        if command.given is not None:  # Airflow has checked what the task names
            _check_allowed(given)
        yield task.spec, given


@contextmanager
def _stage_in_airflow(spec: JobSpec, step: str) -> Iterator[None]:
    """Has Airflow stage the rows of a SQL source, whose connection only it has.

    Raises:
        LLMBeamError: There is no Airflow, or the rows cannot be staged.
    """
    if not isinstance(spec.source, SqlSource) or reads_of(step) == "nothing":
        yield
        return
    with tempfile.NamedTemporaryFile("w", prefix="llmbeam-", suffix=".json") as file:
        file.write(spec.model_dump_json())
        file.flush()
        with open_dag_task(file.name, step, when=None, map_index=None) as staged:
            os.environ.update(staged.environment)
            yield


def _is_task(address: str) -> bool:
    """Returns whether an address names a Dag file, with a task or without, in place of a file with JSON."""
    return not address.startswith("gs://") and ("::" in address or re.search(r"\.py(:|$)", address) is not None)


def _read_given(command: Command, spec: JobSpec) -> SpecModel | None:
    """Reads what a step is asked for; `None` for a job that is run or submitted.

    Raises:
        JobSpecError: It is not valid; or it, or an option, would be ignored, and more be sent than was meant.
    """
    if (step := STEPS.get(command.step)) is None:
        if command.given is not None:
            raise JobSpecError(f"`--input`: step {command.step!r} takes none.")
        return None
    if command.beam_options:
        option = command.beam_options[0].partition("=")[0]
        raise JobSpecError(f"`{option}`: step {command.step!r} takes `--input`, and no options of Beam.")
    given = command.given
    if given is None:
        given = _last_spec(spec) if step.input is JobSpec else {}
    if isinstance(given, str):
        content = _content("--input", given)
        try:
            given = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise JobSpecError(f"{command.given!r} cannot be read as JSON: {error}.") from error
    try:
        return with_base_urls(step.input.parse(given), os.environ, _log)
    except JobSpecError as error:
        if command.given is not None:
            raise
        needed = f"`{command.step}` needs a JSON file after the job, or a task that says what it asks for:"
        raise JobSpecError(f"{needed} {error}") from None


def _last_spec(spec: JobSpec) -> Any:
    """Returns the spec of the last run of a job, from its report.

    Raises:
        JobSpecError: There is no report.
    """
    uri = spec.paths.report_uri
    try:
        return json.loads(_content("report", uri))["spec"]
    except (JobSpecError, ValueError, KeyError) as error:
        raise JobSpecError(
            f"There is no report of job {spec.name!r} to compare with at {uri!r}. Expected the spec of an earlier "
            "run, `llmbeam diff OLD.json NEW.json`, or the day of a run of the task in `--date`."
        ) from error


def _content(option: str, address: str) -> bytes:
    if address.startswith("gs://"):
        from airflow_provider_llmbeam.pipeline.launch.reachable import check_uri_reachable

        check_uri_reachable(option, address)
    try:
        return _read(address) if "://" in address else Path(address).read_bytes()
    except OSError as error:
        expected = " Expected the JSON of a spec, or a task, FILE::TASK." if option == "--spec" else ""
        raise JobSpecError(f"{address!r} cannot be read: {error.strerror or error}.{expected}") from error
    except Exception as raised:  # of a service, or of Beam for a filesystem that it lacks
        from airflow_provider_llmbeam.pipeline.launch.writable import is_final, service_error

        found = service_error(raised)
        is_service = address.startswith("gs://") and not is_final(found)
        raise (JobFailedError if is_service else JobSpecError)(
            f"`{option}` {address!r} cannot be read: {str(found).rstrip('.')}. Expected a file, local or on gs://."
        ) from raised


def _read(uri: str) -> bytes:
    from apache_beam.io.filesystems import FileSystems

    with FileSystems.open(uri) as file:
        return bytes(file.read())
