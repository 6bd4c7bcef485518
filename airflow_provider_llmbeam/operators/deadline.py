"""`inference.finish_by: 'deadline'`: the time of the earliest deadline of a task's Dag."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.polling.poller import TaskLog
from airflow_provider_llmbeam.spec.fields.text import from_text

#: The `reference_type` of each of Airflow's references that a task can compute, the same from 3.1 to 3.3.
_KNOWN = ("DagRunLogicalDateDeadline", "DagRunQueuedAtDeadline", "FixedDatetimeDeadline")
_FIELD = "`inference.finish_by`: 'deadline'"


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """A deadline of a Dag.

    Attributes:
        reference: What Airflow stores of its `DeadlineReference`: `reference_type`; `datetime` in Unix seconds.
        interval: Time from the reference to the deadline.
    """

    reference: Mapping[str, Any]
    interval: timedelta


@dataclass(frozen=True, kw_only=True)
class RunTimes:
    """What a task knows of its Dag run.

    Attributes:
        logical_date: Logical date; `None` for a run without one.
        queued_at: Time when the run was queued, or its start where Airflow does not tell a task the former.
    """

    logical_date: datetime | None
    queued_at: datetime


def earliest_deadline(deadlines: Sequence[Deadline], run: RunTimes) -> datetime:
    """Returns the earliest deadline of a run.

    A run without a logical date has no deadline that counts from it.
    Source: `SerializedBaseDeadlineReference.evaluate_with` of Airflow 3.3.

    Raises:
        JobSpecError: The run has no deadline, or a task cannot know the time of one.
    """
    _check(each.reference.get("reference_type") for each in deadlines)
    times = []
    for each in deadlines:
        match each.reference["reference_type"]:
            case "FixedDatetimeDeadline":
                times.append(datetime.fromtimestamp(each.reference["datetime"], UTC) + each.interval)
            case "DagRunQueuedAtDeadline":
                times.append(run.queued_at + each.interval)
            case _ if run.logical_date is not None:
                times.append(run.logical_date + each.interval)
    if not times:
        raise _refusal("counts from the logical date of the run, and this run has none")
    return min(times)


def with_stand_in(inference: Any, dag: Any) -> Any:
    """Returns the `inference` of an operator where its time does not matter, as while its Dag is parsed.

    Args:
        inference: Plain data, a template or a reference.
        dag: The Dag of the task, whose deadlines are checked; `None` if it is not known yet, or was checked.

    Raises:
        JobSpecError: The Dag has no deadline, or one of them has a time that a task cannot know.
    """
    inference = from_text(inference)
    if not _is_deadline(inference):
        return inference
    if dag is not None:
        _check(alert.reference.serialize_reference().get("reference_type") for alert in _alerts(dag))
    return {**inference, "finish_by": timedelta(seconds=1)}


def with_deadline(inference: Any, dag: Any, dag_run: Any, log: TaskLog) -> Any:
    """Returns the rendered `inference` of a task with a time instead of 'deadline', which is logged.

    Raises:
        JobSpecError: The run has no deadline, or a task cannot know the time of one.
    """
    inference = from_text(inference)
    if not _is_deadline(inference):
        return inference
    # The Execution API of 3.1 to 3.3 leaves `queued_at` out of the Dag run that a task gets.
    queued_at = getattr(dag_run, "queued_at", None) or dag_run.start_date or datetime.now(UTC)
    run = RunTimes(logical_date=dag_run.logical_date, queued_at=queued_at)
    deadlines = [
        Deadline(reference=alert.reference.serialize_reference(), interval=_interval(alert.interval))
        for alert in _alerts(dag)
    ]
    finish_by = earliest_deadline(deadlines, run)
    log.info(
        "The answers are needed by %s, the earliest deadline of Dag %r (DAGRUN_QUEUED_AT counts from %s: a task "
        "is not told when its run was queued before it started).",
        finish_by.isoformat(timespec="seconds"),
        dag.dag_id,
        queued_at.isoformat(timespec="seconds"),
    )
    return {**inference, "finish_by": finish_by}


def _is_deadline(inference: Any) -> bool:
    return isinstance(inference, Mapping) and inference.get("finish_by") == "deadline"


def _alerts(dag: Any) -> Sequence[Any]:
    return dag.deadline or ()


def _check(references: Iterable[Any]) -> None:
    found = list(references)
    if not found:
        raise _refusal("needs a `deadline` of the Dag, which has none")
    for reference in found:
        if reference == "AverageRuntimeDeadline":
            raise _refusal("cannot be AVERAGE_RUNTIME, which Airflow's database alone knows")
        if reference not in _KNOWN:
            raise _refusal(f"cannot be of the custom reference {reference!r}, which the scheduler alone computes")


def _interval(interval: Any) -> timedelta:
    """Returns an interval, also one that is a Variable (`VariableInterval`, since Airflow 3.3), in seconds."""
    if isinstance(interval, timedelta):
        return interval
    from airflow.sdk import Variable

    seconds = Variable.get(interval.key, default=None)
    try:
        return timedelta(seconds=int(seconds))
    except (TypeError, ValueError):
        raise _refusal(f"takes its interval from Variable {interval.key!r}, which is no number") from None


def _refusal(why: str) -> JobSpecError:
    return JobSpecError(f"{_FIELD} {why}; give a time or a duration, e.g. 'PT6H'.")
