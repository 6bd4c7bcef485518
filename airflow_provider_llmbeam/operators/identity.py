"""The name of a task's job, which is the same for every try of a run."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime, tzinfo
from typing import Any

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.hooks.deployment import own_deployment
from airflow_provider_llmbeam.spec.fields.suggestion import nearest
from airflow_provider_llmbeam.spec.limits import OVER_RUNS


def job_name(ti: Any, task_id: str | None = None, *, run_id: str | None = None) -> str:
    """Returns a readable name for a task's job: unique to this deployment, and the same for every try.

    Args:
        ti: Task instance.
        task_id: Id of another task with the same run and map index; by default the task of `ti`.
        run_id: Id of another run; by default that of `ti`.

    Raises:
        JobSpecError: `[llmbeam] deployment` is not a valid name.
    """
    task_id = ti.task_id if task_id is None else task_id
    return _name(ti.dag_id, task_id, run_id or ti.run_id, ti.map_index)


def planned_run_id(logical_date: datetime) -> str:
    """Returns the id of the run of a logical date that does not exist yet."""
    return f"manual__{logical_date.astimezone(UTC).isoformat()}"


def refuse_unknown_task(argument: str, task_id: str, dag: Any) -> None:
    """Refuses the id of another task that the Dag does not have, e.g. one without its task group.

    Args:
        argument: Argument that names it.
        task_id: The id.
        dag: The Dag; `None` if it is not known.

    Raises:
        JobSpecError: There is no such task.
    """
    if dag is None or dag.has_task(task_id):
        return
    grouped = [f"did you mean `{known}`?" for known in sorted(dag.task_ids) if known.endswith(f".{task_id}")]
    hint = grouped[0] if grouped else nearest(task_id, dag.task_ids)
    raise JobSpecError(
        f"`{argument}`: Dag {dag.dag_id!r} has no task {task_id!r}{hint and f'; {hint}'}"
        f"{'' if hint.endswith('?') else '.'} The id of a task has those of its task groups."
    )


def name_in_every_run(ti: Any) -> str:
    """Returns a name for a task's job that is the same for every run and try, so that its runs share a journal.

    Args:
        ti: Task instance.

    Raises:
        JobSpecError: `[llmbeam] deployment` is not a valid name.
    """
    return _name(ti.dag_id, ti.task_id, ti.map_index)


def _name(dag_id: str, task_id: str, *others: Any) -> str:
    identity = "\0".join(map(str, (own_deployment(), dag_id, task_id, *others)))
    digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
    readable = re.sub(r"[^a-z0-9]+", "-", f"{dag_id}-{task_id}".lower()).strip("-")[:80]
    return f"{readable or 'job'}-{digest}"


def budget_name(over: str, ti: Any, dag_run: Any, timezone: tzinfo) -> str | None:
    """Returns the name of a budget that the runs of a Dag share; `None` for a run that has no part in it.

    Args:
        over: Which runs share it, see `spec.SharedBudget`; any other word is the name.
        ti: Task instance.
        dag_run: Its run.
        timezone: Time zone of the Dag.
    """
    if over not in OVER_RUNS:
        return over
    if over == "backfill" and dag_run.run_type != "backfill":
        return None
    started_at = (dag_run.start_date or datetime.now(UTC)).astimezone(timezone)
    month = f"-{started_at:%Y-%m}" if over == "month" else ""
    return f"{over}-{_name(ti.dag_id, '')}{month}"


def owner_of(ti: Any) -> str:
    """Returns what a task's job is called from run to run: Dag, task and map index."""
    mapped = f"[{ti.map_index}]" if ti.map_index is not None and ti.map_index >= 0 else ""
    return f"{ti.dag_id}.{ti.task_id}{mapped}"


def airflow_run_of(ti: Any, name: str, logical_date: datetime | None) -> dict[str, Any]:
    """Returns the task instance as the spec of its job names it, see `spec.safety.AirflowRun`.

    Args:
        ti: Task instance.
        name: Name of its job.
        logical_date: Logical date of its run.
    """
    index = -1 if ti.map_index is None else ti.map_index
    found = {"dag_id": ti.dag_id, "task_id": ti.task_id, "run_id": ti.run_id, "map_index": index}
    if name != job_name(ti):
        return found
    planned = "" if logical_date is None else job_name(ti, run_id=planned_run_id(logical_date))
    return {**found, "names_job": True, "planned_job": planned}
