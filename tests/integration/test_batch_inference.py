"""`RunInferenceOperator` with batch inference, in Dags that run in this process."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from threading import Thread

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG, task
from airflow.sdk.definitions.deadline import AsyncCallback, DeadlineAlert, DeadlineReference
from llmbeam_sandbox.batch_inference.settings import BatchSettings
from waiting import until

from airflow_provider_llmbeam.operators import run_inference
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator
from airflow_provider_llmbeam.pipeline.batch_inference.run import PILOT_ROWS
from tests.processes import forked_jobs

pytestmark = [pytest.mark.promise(2), pytest.mark.slow]

ROWS = 60


@pytest.fixture
def operator(tmp_path, connection, monkeypatch):
    """Makes the task of a job of the Developer API; its waits are short."""
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"id": number, "text": f"text {number}"}) + "\n" for number in range(ROWS))
    )
    defer = RunInferenceOperator._defer_batch
    monkeypatch.setattr(run_inference, "MIN_DEFERRED_SECONDS", 0.1)
    monkeypatch.setattr(
        RunInferenceOperator, "_defer_batch", lambda self, seconds, since: defer(self, seconds / 100, since)
    )

    def make(**changes):
        arguments = {
            "task_id": "answer",
            "source": {"uri": f"{tmp_path}/rows.jsonl", "key": ["id"]},
            "prompt": "Say it: {{ row.text }}",
            "model": {"type": "gemini"},
            "sink": f"{tmp_path}/out",
            "inference": {"mode": "batch"},
        }
        return RunInferenceOperator(**arguments | changes)

    return make


async def late(**_):
    """Callback of a deadline."""


def batch_answers(sandbox):
    return {charge.tier: charge.answers for charge in sandbox.token_bill.charges}.get("batch", 0)


def test_a_task_waits_for_its_batch_without_a_worker_slot(run_dag, operator, sandbox):
    sandbox.batches.settings = BatchSettings(run_seconds=2.0)
    with DAG("batch", schedule=None) as dag:
        operator()
    run, states = run_dag(dag)
    assert states == {"answer": "success"}
    manifest = run.get_task_instance("answer").xcom_pull(task_ids="answer")
    assert manifest["rows"] == {"read": ROWS, "answered": ROWS, "dead_letter": 0, "skipped": 0}
    assert manifest["origins"]["batch"] == ROWS - PILOT_ROWS == batch_answers(sandbox)
    assert len(sandbox.requests.paid("gemini.generateContent")) == PILOT_ROWS


@pytest.mark.parametrize(
    "kind",
    ["gemini", pytest.param("anthropic", marks=pytest.mark.full)],
)
def test_a_retry_continues_with_the_batch_of_the_killed_try_in_its_process(
    run_dag, operator, sandbox, monkeypatch, kind
):
    """The process of the job is killed while it waits; the next try of the same run finds the batch."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", sandbox.url)
    monkeypatch.setattr(RunInferenceOperator, "_defer_batch", None)
    sandbox.batches.settings = BatchSettings(run_seconds=3.0)
    model = {"type": kind} if kind == "gemini" else {"type": kind, "name": "claude-haiku-5-5"}
    killed = []

    def creations():
        return sum(each.method == f"{kind}.batches.create" for each in sandbox.requests)

    def kill_when_submitted():
        until(creations, "a batch")
        for job in forked_jobs():
            job.kill()
            killed.append(job.pid)

    with DAG("killed", schedule=None) as dag:
        inference = {"mode": "auto", "finish_by": "PT30M"}
        operator(deferrable=False, job_name="night", model=model, inference=inference)
    thread = Thread(target=kill_when_submitted)
    thread.start()
    assert run_dag(dag)[1] == {"answer": "failed"}
    thread.join()
    assert killed
    assert run_dag(dag)[1] == {"answer": "success"}
    assert creations() == 1
    assert batch_answers(sandbox) == ROWS - PILOT_ROWS
    assert sum(charge.answers for charge in sandbox.token_bill.charges) == ROWS


def test_the_time_of_a_duration_is_counted_from_the_start_of_the_run(operator):
    with DAG("deadline", schedule=None):
        answer = operator(inference={"mode": "auto", "finish_by": "PT6H"}, job_name="night")
    started_at = datetime(2026, 11, 24, tzinfo=UTC)

    class Run:
        start_date = started_at

    class Instance:
        dag_id, task_id, map_index, run_id = "deadline", "answer", -1, "r"

    spec, _ = answer._job({"dag_run": Run, "ti": Instance})
    assert spec.inference.finish_by == started_at + timedelta(hours=6)


@task
def fail():
    raise AirflowFailException("The end.")


@pytest.mark.full
def test_the_earliest_deadline_of_the_dag_is_the_time_of_the_job(run_dag, operator, tmp_path):
    """The run fails at its end: `dag.test` of Airflow 3.3 breaks where a run of a Dag with deadlines succeeds.

    The deadlines are fixed times: that of Airflow 3.1 breaks at the start of a run with DAGRUN_QUEUED_AT.
    """
    noon = datetime(2126, 11, 24, 12, tzinfo=UTC)
    reference, callback = DeadlineReference.FIXED_DATETIME(noon), AsyncCallback(late)
    deadlines = [DeadlineAlert(reference, timedelta(hours=hours), callback) for hours in (6, 2)]
    with DAG("alerted", schedule=None, deadline=deadlines) as dag:
        operator(inference={"mode": "auto", "finish_by": "deadline"}) >> fail()
    assert run_dag(dag)[1] == {"answer": "success", "fail": "failed"}
    spec = json.loads((tmp_path / "out" / "report.json").read_text())["spec"]
    assert datetime.fromisoformat(spec["inference"]["finish_by"]) == noon + timedelta(hours=2)
