"""The time of `inference.finish_by: 'deadline'`, by Airflow's own classes."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.definitions.deadline import AsyncCallback, DeadlineAlert, DeadlineReference

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.operators.deadline import (
    Deadline,
    RunTimes,
    earliest_deadline,
    with_deadline,
    with_stand_in,
)
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

LOGICAL = datetime(2026, 11, 24, tzinfo=UTC)
MORNING = datetime(2027, 1, 1, 6, tzinfo=UTC)
STARTED = datetime(2026, 11, 25, 2, tzinfo=UTC)
RUN = RunTimes(logical_date=LOGICAL, queued_at=STARTED)
LOG = logging.getLogger("task")
HOUR = timedelta(hours=1)


async def late(**_: Any) -> None:
    """Callback of the deadlines."""


def alert(reference: Any, interval: Any = HOUR) -> DeadlineAlert:
    return DeadlineAlert(reference=reference, interval=interval, callback=AsyncCallback(late))


def deadline(reference: Any, interval: timedelta = HOUR) -> Deadline:
    return Deadline(reference=reference.serialize_reference(), interval=interval)


def dag(*alerts: DeadlineAlert) -> DAG:
    return DAG("nightly", schedule=None, deadline=list(alerts) or None)


class Custom(type(DeadlineReference.DAGRUN_QUEUED_AT)):  # type: ignore[misc]
    """A reference of a user."""


@pytest.mark.parametrize(
    ("reference", "counted_from"),
    [
        (DeadlineReference.DAGRUN_LOGICAL_DATE, LOGICAL),
        (DeadlineReference.DAGRUN_QUEUED_AT, STARTED),
        (DeadlineReference.FIXED_DATETIME(MORNING), MORNING),
    ],
)
def test_each_reference_that_a_task_knows_has_its_time(reference: Any, counted_from: datetime) -> None:
    assert earliest_deadline([deadline(reference)], RUN) == counted_from + HOUR


def test_of_several_deadlines_the_earliest_counts() -> None:
    queued, logical = DeadlineReference.DAGRUN_QUEUED_AT, DeadlineReference.DAGRUN_LOGICAL_DATE
    found = earliest_deadline([deadline(queued, 3 * HOUR), deadline(queued), deadline(logical, 30 * HOUR)], RUN)
    assert found == STARTED + HOUR


def test_a_run_without_a_logical_date_has_no_deadline_that_counts_from_it() -> None:
    run = RunTimes(logical_date=None, queued_at=STARTED)
    logical, queued = deadline(DeadlineReference.DAGRUN_LOGICAL_DATE), deadline(DeadlineReference.DAGRUN_QUEUED_AT)
    assert earliest_deadline([logical, queued], run) == STARTED + HOUR
    with pytest.raises(JobSpecError, match="counts from the logical date of the run, and this run has none; give"):
        earliest_deadline([logical], run)


FAULTS = [
    ([], "'deadline' needs a `deadline` of the Dag, which has none; give a time or a duration, e.g. 'PT6H'."),
    ([Custom()], "'deadline' cannot be of the custom reference 'Custom', which the scheduler alone computes"),
]
if hasattr(DeadlineReference, "AVERAGE_RUNTIME"):  # since Airflow 3.2
    average = DeadlineReference.AVERAGE_RUNTIME(max_runs=5)
    FAULTS.append(([DeadlineReference.DAGRUN_QUEUED_AT, average], "cannot be AVERAGE_RUNTIME, which Airflow's"))


@pytest.mark.parametrize(("references", "fault"), FAULTS)
def test_a_deadline_that_a_task_cannot_know_is_refused(references: list[Any], fault: str) -> None:
    """Also beside one that it knows, as the other one may be earlier."""
    with pytest.raises(JobSpecError) as refused:
        earliest_deadline([deadline(each) for each in references], RUN)
    assert fault in str(refused.value)
    assert str(refused.value).endswith("Nothing was sent or billed.")


@pytest.mark.parametrize(("references", "fault"), FAULTS)
def test_an_operator_refuses_it_while_its_dag_is_parsed(references: list[Any], fault: str) -> None:
    with dag(*map(alert, references)), pytest.raises(JobSpecError) as refused:
        operator()
    assert str(refused.value).startswith("Task 'judge': `inference.finish_by`: 'deadline' ")
    assert fault in str(refused.value)


def operator(**changes: Any) -> RunInferenceOperator:
    arguments: dict[str, Any] = {
        "task_id": "judge",
        "source": {"uri": "in.csv", "key": "id"},
        "prompt": "Judge: {{ row.text }}",
        "model": "gemini-2.5-flash",
        "sink": "out/",
        "inference": {"mode": "auto", "finish_by": "deadline"},
    }
    return RunInferenceOperator(**arguments | changes)


def test_the_rest_of_the_inference_is_checked_while_the_dag_is_parsed() -> None:
    with dag(alert(DeadlineReference.DAGRUN_QUEUED_AT)), pytest.raises(JobSpecError, match=r"inference\.mode"):
        operator(inference={"mode": "quick", "finish_by": "deadline"})


def test_an_operator_that_gets_its_dag_later_is_checked_when_it_runs() -> None:
    task = operator()
    assert task.inference == {"mode": "auto", "finish_by": "deadline"}


@pytest.mark.parametrize("inference", [None, {"mode": "batch"}, "{{ params.inference }}", {"finish_by": "PT6H"}])
def test_an_inference_without_the_word_stays_as_it_is(inference: Any) -> None:
    assert with_stand_in(inference, None) == inference == with_deadline(inference, None, None, LOG)


@pytest.mark.parametrize("inference", [{"finish_by": "deadline"}, '{"finish_by": "deadline"}'])
def test_a_task_reads_the_deadlines_of_its_dag(inference: Any, caplog: pytest.LogCaptureFixture) -> None:
    run = SimpleNamespace(logical_date=LOGICAL, start_date=STARTED)
    with caplog.at_level(logging.INFO, "task"):
        found = with_deadline(inference, dag(alert(DeadlineReference.DAGRUN_QUEUED_AT)), run, LOG)
    assert found == {"finish_by": STARTED + HOUR}
    assert "needed by 2026-11-25T03:00:00+00:00, the earliest deadline of Dag 'nightly'" in caplog.text


def test_the_time_when_a_run_was_queued_counts_where_airflow_tells_it() -> None:
    run = SimpleNamespace(logical_date=None, start_date=STARTED, queued_at=LOGICAL)
    found = with_deadline({"finish_by": "deadline"}, dag(alert(DeadlineReference.DAGRUN_QUEUED_AT)), run, LOG)
    assert found == {"finish_by": LOGICAL + HOUR}


def test_an_interval_may_be_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """`VariableInterval` of Airflow 3.3; before, an interval is a duration."""
    monkeypatch.setenv("AIRFLOW_VAR_DEADLINE_SECONDS", "7200")
    interval = SimpleNamespace(key="deadline_seconds")
    run = SimpleNamespace(logical_date=None, start_date=STARTED)
    given = dag(alert(DeadlineReference.DAGRUN_QUEUED_AT, interval))
    assert with_deadline({"finish_by": "deadline"}, given, run, LOG) == {"finish_by": STARTED + 2 * HOUR}
    monkeypatch.setenv("AIRFLOW_VAR_DEADLINE_SECONDS", "two hours")
    with pytest.raises(JobSpecError, match="its interval from Variable 'deadline_seconds', which is no number"):
        with_deadline({"finish_by": "deadline"}, given, run, LOG)


def test_a_task_that_failed_before_its_time_was_known_has_its_lineage() -> None:
    instance = SimpleNamespace(dag_id="nightly", task_id="judge", run_id="r", map_index=-1)
    for inference in ({"finish_by": "deadline"}, '{"finish_by": "deadline"}'):
        task = operator()
        task.inference = inference
        assert Path(task._job_facts(instance).spec.source.uri).name == "in.csv"
