"""`EndpointReadySensor` in a real Dag run."""

from __future__ import annotations

import pytest
from airflow.sdk import DAG, task
from llmbeam_sandbox import Fault

from airflow_provider_llmbeam.sensors.endpoint import EndpointReadySensor
from airflow_provider_llmbeam.triggers.base import PollingTrigger

GENERATE = "gemini.generateContent"
BUSY = Fault(kind="error", http_status=503)
LATE = {"timeout": 1.5, "retries": 3}
#: Both times of a result are rounded to milliseconds.
ROUNDING_SECONDS = 0.002


@pytest.fixture(autouse=True)
def quick(monkeypatch, connection):
    monkeypatch.setattr(PollingTrigger, "first_poll_delay_seconds", 0.1)


def dag_of(received=None, **sensor):
    """Returns a Dag with a task that returns a model spec, the sensor, and a task that receives its result."""

    @task
    def model():
        return {"type": "gemini", "name": "gemini-2.5-flash-lite"}

    @task(trigger_rule="all_done")
    def after(found):
        if received is not None:
            received.append(found)

    with DAG("waiting", schedule=None) as dag:
        after(EndpointReadySensor(task_id="ready", **{"model": model(), "poke_interval": 0.1, **sensor}).output)
    return dag


def test_a_task_waits_in_the_triggerer_until_the_model_answers(sandbox, run_dag):
    sandbox.faults.queue(GENERATE, BUSY, BUSY, Fault(kind="rate-limit", retry_delay_seconds=None))
    received = []
    _, states = run_dag(dag_of(received, timeout=60))
    assert states == {"model": "success", "ready": "success", "after": "success"}
    (found,) = received
    assert found["model"] == {"type": "gemini", "name": "gemini-2.5-flash-lite"}
    assert found["polls"] == 4
    assert {record.model for record in sandbox.requests} == {"gemini-2.5-flash-lite"}
    assert [record.http_status for record in sandbox.requests] == [503, 503, 429, 200]
    first, *_, refused, _ = sandbox.requests
    before_the_answer = found["waited_seconds"] - found["latency_seconds"]
    assert before_the_answer + ROUNDING_SECONDS >= refused.answered_at - first.received_at


@pytest.mark.parametrize(("soft_fail", "state"), [(False, "failed"), (True, "skipped")])
def test_a_timeout_fails_or_skips_the_task_without_a_retry(sandbox, run_dag, soft_fail, state):
    sandbox.faults.every(GENERATE, 1, BUSY)
    _, states = run_dag(dag_of(soft_fail=soft_fail, **LATE))
    assert states["ready"] == state
    assert len(sandbox.requests) in (2, 3), "at once, when the time was over, and after 1 s if that was before"


def test_a_refusal_while_deferred_fails_at_once_regardless_of_soft_fail(sandbox, run_dag):
    sandbox.faults.queue(GENERATE, BUSY, Fault(kind="error", http_status=403, message="Not yours."))
    _, states = run_dag(dag_of(timeout=60, soft_fail=True, retries=3))
    assert states["ready"] == "failed"
    assert len(sandbox.requests) == 2


@pytest.mark.full
@pytest.mark.parametrize("soft_fail", [False, True])
def test_a_sensor_that_is_not_deferrable_waits_on_the_worker(sandbox, run_dag, soft_fail):
    sandbox.faults.queue(GENERATE, BUSY)
    _, states = run_dag(dag_of(deferrable=False, soft_fail=soft_fail))
    assert states["ready"] == "success"


@pytest.mark.full
def test_in_reschedule_mode_the_task_is_rescheduled(sandbox, run_dag):
    sandbox.faults.queue(GENERATE, BUSY)
    _, states = run_dag(dag_of(deferrable=False, mode="reschedule", poke_interval=1))
    assert states["ready"] == "success"
    assert len(sandbox.requests) == 2
