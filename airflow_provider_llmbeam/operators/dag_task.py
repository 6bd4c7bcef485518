"""A task of a Dag file, as Airflow would run it: its job, for the command line. Or the JSON of a job with a query.

`pipeline/dag_task.py` starts it, in the environment of Airflow. It writes the job to a file descriptor, as it
has secrets, and stays until its standard input is closed, since the key file of a connection is its own.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import signal
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from airflow.sdk import XComArg
from airflow.sdk.definitions.mappedoperator import MappedOperator

from airflow_provider_llmbeam.exceptions import JobSpecError, LLMBeamError, error_name
from airflow_provider_llmbeam.hooks.google.authentication import google_credentials
from airflow_provider_llmbeam.operators.base import InferenceJobOperator
from airflow_provider_llmbeam.operators.compare_inference import CompareInferenceOperator
from airflow_provider_llmbeam.operators.evaluate_inference import EvaluateInferenceOperator
from airflow_provider_llmbeam.operators.identity import planned_run_id
from airflow_provider_llmbeam.spec.fields.suggestion import nearest
from airflow_provider_llmbeam.spec.job import JobSpec

XCOM_RETURN_KEY = "return_value"
_log = logging.getLogger(__name__)
#: Operators whose tasks alone say what these steps are asked for.
_OPERATORS: dict[str, type[InferenceJobOperator]] = {
    "evaluate": EvaluateInferenceOperator,
    "compare": CompareInferenceOperator,
}
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of a Dag file.

    Attributes:
        address: `FILE::TASK`, or `FILE::DAG::TASK` for one of several Dags with that task.
        step: Name of the step.
        when: Day, time or id of a Dag run; `None`: that of the newest run.
        map_index: Index of an instance of a mapped task.
    """

    address: str
    step: str
    when: str | None = None
    map_index: int | None = None


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the job of a task, or an error, as JSON."""
    parser = argparse.ArgumentParser()
    for name, kind in (("address", str), ("--step", str), ("--date", str), ("--map-index", int), ("--fd", int)):
        parser.add_argument(name, type=kind)
    options = parser.parse_args(argv)
    # The command ends this process; key files are removed then.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    question = Question(address=options.address, step=options.step, when=options.date, map_index=options.map_index)
    with ExitStack() as until_end:
        try:
            is_task = "::" in question.address
            found = until_end.enter_context((job_of_task if is_task else stage_job)(question))
        except LLMBeamError as error:
            found = {"error": {"type": error_name(error), "message": str(error)}}
        with suppress(BrokenPipeError), os.fdopen(options.fd, "w") as result:
            json.dump(found, result)
        sys.stdin.read()
    return 0


@dataclass(frozen=True, slots=True)
class RenderedTask:
    """A task as Airflow rendered it for a run.

    Attributes:
        task: The task; of a mapped one, its instance.
        spec: Its job.
        secrets: Environment variables with the secrets of its connections.
        given: What its step is asked for, if it says so.
        run_id: Id of the run.
        is_known: Whether there is such a run.
    """

    task: Any
    spec: JobSpec
    secrets: dict[str, str]
    given: Any
    run_id: str
    is_known: bool


@contextmanager
def job_of_task(question: Question) -> Iterator[dict[str, Any]]:
    """Provides the job of a task as plain data, with its secrets: they are valid in the body.

    Args:
        question: What is asked.

    Raises:
        JobSpecError: See `rendered_task`.
    """
    from airflow_provider_llmbeam.hooks.storage import files_at
    from airflow_provider_llmbeam.jobs.stage import stage_source
    from airflow_provider_llmbeam.spec.protocol.steps import reads_of

    with rendered_task(question) as found:
        spec, conn_id, before = found.spec, found.task.gcp_conn_id, dict(os.environ)
        reads = reads_of(question.step)
        files = partial(files_at, gcp_conn_id=conn_id, kms_key_name=spec.kms_key_name)
        with (
            google_credentials(spec, conn_id, getattr(found.given, "models", ())),
            stage_source(spec, reads, files, _log) as staged,
        ):
            changed = {name: value for name, value in os.environ.items() if before.get(name) != value}
            yield {
                "spec": spec.model_dump(mode="json"),
                "environment": changed | found.secrets | staged,
                "given": None if found.given is None else found.given.model_dump(mode="json"),
                "run_id": found.run_id,
                "is_known": found.is_known,
            }


@contextmanager
def rendered_task(question: Question) -> Iterator[RenderedTask]:
    """Provides a task as Airflow renders it; connections are found in the body.

    Args:
        question: What is asked.

    Raises:
        JobSpecError: The file, the task, the run or an argument of the task does not fit.
    """
    path, _, name = question.address.partition("::")
    task = _find_task(_parse(Path(path)), Path(path), name, question.step)
    map_index = _map_index(task, question.map_index)
    with airflow_of_tasks() as has_database:
        run, is_known = _run_of(task.dag, question.when, has_database=has_database)
        context = _context(task, run, map_index)
        _refuse_missing_results(task, context["ti"], is_known=is_known)
        try:
            task.render_template_fields(context)
        except LLMBeamError:
            raise
        except Exception as error:
            raise JobSpecError(
                f"Task {task.task_id!r} cannot be rendered for run {run.run_id!r}: {type(error).__name__}: {error}"
            ) from error
        rendered: Any = context["task"]  # of a mapped task, its instance
        spec, secrets, given = rendered.resolve_job(context)
        yield RenderedTask(rendered, spec, secrets, given, run.run_id, is_known)


@contextmanager
def stage_job(question: Question) -> Iterator[dict[str, Any]]:
    """Stages the rows of a job that is no task; they are those of its connection in this Airflow.

    Args:
        question: Its address is a local file with the JSON of the spec.

    Raises:
        LLMBeamError: They cannot be read or written.
    """
    from airflow_provider_llmbeam.hooks.storage import files_at
    from airflow_provider_llmbeam.jobs.stage import stage_source
    from airflow_provider_llmbeam.spec.protocol.steps import reads_of

    spec = JobSpec.from_json(Path(question.address).read_bytes())
    files = partial(files_at, gcp_conn_id="google_cloud_default", kms_key_name=spec.kms_key_name)
    with airflow_of_tasks(), stage_source(spec, reads_of(question.step), files, _log) as staged:
        yield {
            "spec": spec.model_dump(mode="json"),
            "environment": staged,
            "given": None,
            "run_id": "",
            "is_known": False,
        }


def _parse(path: Path) -> list[Any]:
    """Returns the Dags of a file.

    Raises:
        JobSpecError: There is none, or the file fails.
    """
    if not path.is_file():
        raise JobSpecError(f"There is no Dag file {str(path)!r}. Expected FILE::TASK, e.g. dags/x.py::task.")
    try:
        from airflow.dag_processing.dagbag import DagBag
    except ImportError:  # Airflow 3.1
        from airflow.models.dagbag import DagBag  # type: ignore[no-redef]
    from airflow.configuration import conf

    for folder in (conf.get("core", "dags_folder"), str(path.parent.resolve())):  # for modules beside it
        if folder not in sys.path:
            sys.path.append(folder)
    bag = DagBag(str(path), safe_mode=False)
    if bag.import_errors:
        last = next(iter(bag.import_errors.values())).strip().splitlines()[-1]
        raise JobSpecError(f"Dag file {str(path)!r} cannot be imported: {last}")
    if not bag.dags:
        raise JobSpecError(f"Dag file {str(path)!r} has no Dag.")
    return [*bag.dags.values()]


def _find_task(dags: Sequence[Any], path: Path, name: str, step: str) -> Any:
    """Returns a task by its id, with the id of its Dag where several Dags have one.

    Raises:
        JobSpecError: There is no such task, or several ones, or it is none for the step.
    """
    kind = _OPERATORS.get(step, InferenceJobOperator)
    dag_id, _, task_id = name.rpartition("::")
    tasks = [task for dag in dags for task in dag.tasks]
    ours = [task for task in tasks if issubclass(_class_of(task), kind)]
    names = [f"{path}::{task.task_id}" for task in ours]
    those = f"Its tasks for `{step}`: {', '.join(names)}." if names else f"It has no task for `{step}`."
    if not name:
        raise JobSpecError(f"{path}: name one of its tasks, FILE::TASK. {those}")
    found = [task for task in tasks if task.task_id == task_id and dag_id in ("", task.dag_id)]
    if len(found) > 1:
        one = f"{path}::{found[0].dag_id}::{task_id}"
        raise JobSpecError(f"Several Dags of {path} have a task {task_id!r}: name one, e.g. {one}.")
    if not found:
        grouped = [task.task_id for task in ours if task.task_id.endswith(f".{task_id}")]
        hint = f"did you mean `{grouped[0]}`?" if grouped else nearest(task_id, [task.task_id for task in ours])
        raise JobSpecError(f"{path} has no task {name!r}{f'; {hint}' if hint.endswith('?') else '.'} {those}")
    if found[0] not in ours:
        got = _class_of(found[0]).__name__
        needed = "RunInferenceOperator" if kind is InferenceJobOperator else kind.__name__
        raise JobSpecError(f"Task {task_id!r} of {path} is of {got}, and `{step}` takes one of {needed}. {those}")
    return found[0]


def _class_of(task: Any) -> type:
    return task.operator_class if isinstance(task, MappedOperator) else type(task)


def _map_index(task: Any, given: int | None) -> int:
    """Returns the map index of a task, as `airflow tasks render` takes it.

    Raises:
        JobSpecError: The task is mapped and has none, or the other way round.
    """
    is_mapped = isinstance(task, MappedOperator) or task.get_closest_mapped_task_group() is not None
    if is_mapped and given is None:
        raise JobSpecError(f"Task {task.task_id!r} is mapped: name one of its instances, e.g. `--map-index 0`.")
    if not is_mapped and given is not None:
        raise JobSpecError(f"`--map-index`: task {task.task_id!r} is not mapped.")
    return -1 if given is None else given


@contextmanager
def airflow_of_tasks() -> Iterator[bool]:
    """Lets connections, variables and XComs be found as in a task, without a worker, as `dag.test()` does.

    Yields whether there is a metadata database; without one, only the environment and the secrets backends have
    connections.
    """
    import psutil
    import structlog
    from airflow.sdk.execution_time.supervisor import (
        InProcessSupervisorComms,
        InProcessTestSupervisor,
        set_supervisor_comms,
    )

    if not _has_database():
        yield False
        return
    supervisor: Any = InProcessTestSupervisor(
        id=uuid.uuid4(),
        pid=os.getpid(),
        process=psutil.Process(),
        process_log=structlog.get_logger(logger_name="task"),
        client=InProcessTestSupervisor._api_client(),  # type: ignore[no-untyped-call]
    )
    supervisor.comms = InProcessSupervisorComms(supervisor=supervisor)
    with set_supervisor_comms(supervisor.comms):
        yield True


def _has_database() -> bool:
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with create_session() as session:
            session.execute(select(DagRun.run_id).limit(1))
    except SQLAlchemyError:
        return False
    return True


def _run_of(dag: Any, when: str | None, *, has_database: bool) -> tuple[Any, bool]:
    """Returns a Dag run as the server describes it to a task, and whether it exists.

    Raises:
        JobSpecError: `when` is no day and no time, and there is no such run.
    """
    from airflow.api_fastapi.execution_api.datamodels.taskinstance import DagRun as RunOfTask
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState
    from airflow.utils.types import DagRunTriggeredByType, DagRunType
    from sqlalchemy import func, select

    begin, end = _period(when, dag)
    moment = func.coalesce(DagRun.logical_date, DagRun.run_after)
    found = select(DagRun).where(DagRun.dag_id == dag.dag_id).order_by(moment.desc()).limit(1)
    if begin is not None:
        found = found.where(moment >= begin, moment <= end)
    elif when is not None:
        found = found.where(DagRun.run_id == when)
    if has_database:
        with create_session() as session:
            if (run := session.scalar(found)) is not None:
                return RunOfTask.model_validate(run, from_attributes=True), True
    if begin is None and when is not None:
        raise JobSpecError(
            f"`--date`: Dag {dag.dag_id!r} has no run {when!r}. Expected a day, a time or the id of a run, e.g. "
            "2026-11-03."
        )
    if begin is None:  # today, not now: the same command finds the answers and the export of the one before
        begin, end = _period(f"{datetime.now(dag.timezone):%Y-%m-%d}", dag)
    logical, interval = _plan(dag, begin, end)
    run = DagRun(
        dag_id=dag.dag_id,
        run_id=planned_run_id(logical),
        run_type=DagRunType.MANUAL,
        logical_date=_pendulum(logical),
        data_interval=interval,
        run_after=interval.end,
        triggered_by=DagRunTriggeredByType.CLI,
        state=DagRunState.RUNNING,
    )
    return RunOfTask.model_validate(run, from_attributes=True), False


def _period(when: str | None, dag: Any) -> tuple[datetime | None, datetime | None]:
    """Returns the first and the last moment of a day in the zone of the Dag, or a time twice."""
    if when is None:
        return None, None
    try:
        if _DAY.fullmatch(when):
            day = date.fromisoformat(when)
            begin, after = (
                datetime(each.year, each.month, each.day, tzinfo=dag.timezone)
                for each in (day, day + timedelta(days=1))
            )
            return begin, after - timedelta(microseconds=1)
        time = datetime.fromisoformat(when)
    except ValueError:
        return None, None
    time = time if time.tzinfo else time.replace(tzinfo=dag.timezone)
    return time, time


def _plan(dag: Any, begin: Any, end: Any) -> tuple[Any, Any]:
    """Returns logical date and data interval of the first scheduled run of a period; else of a manual one."""
    from airflow.timetables.base import TimeRestriction

    begin, end, timetable = _pendulum(begin), _pendulum(end), _timetable_of(dag)
    scheduled = None
    with suppress(NotImplementedError):  # of a timetable without logical dates
        restriction = TimeRestriction(earliest=begin, latest=end, catchup=True)
        scheduled = timetable.next_dagrun_info(last_automated_data_interval=None, restriction=restriction)
    if scheduled is not None and scheduled.data_interval and begin <= scheduled.logical_date <= end:
        return scheduled.logical_date, scheduled.data_interval
    return begin, timetable.infer_manual_data_interval(run_after=begin)


def _pendulum(moment: datetime) -> Any:
    import pendulum

    return pendulum.instance(moment).in_timezone("UTC")


def _timetable_of(dag: Any) -> Any:
    """Returns the timetable that computes intervals; from Airflow 3.2 on that of a Dag file is its description."""
    try:
        from airflow.serialization.encoders import coerce_to_core_timetable
    except ImportError:
        return dag.timetable
    return coerce_to_core_timetable(dag.timetable)


def _refuse_missing_results(task: Any, instance: Any, *, is_known: bool) -> None:
    """Refuses a task that takes the result of another one which its run does not have.

    Raises:
        JobSpecError: Names that task.
    """
    is_mapped = isinstance(task, MappedOperator)
    needed = [*XComArg.iter_xcom_references(task.partial_kwargs if is_mapped else task)]
    if is_mapped:
        needed += [(other, XCOM_RETURN_KEY) for other in task.iter_mapped_dependencies()]
    for other, key in needed:
        if not is_known or instance.xcom_pull(task_ids=other.task_id, key=key) is None:
            raise JobSpecError(
                f"Task {task.task_id!r} takes the result of task {other.task_id!r}, which run {instance.run_id!r} "
                f"does not have. Run Dag {task.dag_id!r} once, or name another run of it in `--date`."
            )


def _context(task: Any, run: Any, map_index: int) -> Any:
    """Returns the context of a task instance of a run, as the server and a worker make it."""
    from airflow.api_fastapi.execution_api.datamodels.taskinstance import TIRunContext
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    fields: dict[str, Any] = {
        "id": uuid.uuid4(),
        "task_id": task.task_id,
        "dag_id": task.dag_id,
        "run_id": run.run_id,
        "try_number": 1,
        "map_index": map_index,
        "task": task,
        "start_date": run.start_date,
        "_ti_context_from_server": TIRunContext.model_validate({"dag_run": run, "max_tries": 0}),
    }
    instance: Any = RuntimeTaskInstance.model_construct(**fields)
    return instance.get_template_context()


if __name__ == "__main__":
    raise SystemExit(main())
