"""`dags/approved_run.py`: a person approves the estimate, or rejects it, before the job sends the rest."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path

import pytest
from waiting import scaled

from tests.integration.cases import Run

DAG_ID = "approved_run"
DAG = Path(__file__).resolve().parents[2] / "dags" / f"{DAG_ID}.py"
ROWS, SAMPLE = 60, 32


def write_reviews(folder):
    folder.mkdir(exist_ok=True)
    rows = ({"review_id": number, "text": f"Review number {number}"} for number in range(ROWS))
    (folder / "today.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_an_approved_job_sends_what_the_estimate_has_not(run_dag, connection, sandbox, monkeypatch, tmp_path):
    monkeypatch.setenv("LLMBEAM_DATA", str(tmp_path))
    write_reviews(tmp_path / "reviews")
    dag = runpy.run_path(str(DAG))["dag"]
    run, states = run_dag(dag, mark_success_pattern="approve")
    assert states == {"estimate": "success", "approve": "success", "judge": "success"}
    origins = run.get_task_instance("judge").xcom_pull(task_ids="judge")["origins"]
    assert (origins["fresh"], origins["resumed"]) == (ROWS - SAMPLE, SAMPLE)
    assert set(sandbox.requests.paid().values()) == {1}


@pytest.fixture
def reviews(cloud, model_connection, shared_data):
    """The reviews that the Dag of the shared Airflow reads."""
    folders = [shared_data / name for name in ("reviews", "moods", "state")]
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)  # of other modules
    write_reviews(folders[0])
    yield folders[0]
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.full
@pytest.mark.xdist_group("airflow-services")
@pytest.mark.timeout(scaled(300))
@pytest.mark.parametrize(
    ("option", "judge", "sent"), [("Approve", "success", ROWS), ("Reject", "skipped", SAMPLE)], ids=str
)
def test_the_response_of_a_person_decides_on_a_real_scheduler(cloud, reviews, option, judge, sent):
    airflow, run = cloud.airflow, Run(cloud, DAG_ID)
    before = sum(cloud.sandbox.requests.paid().values())

    def form():
        """The form, once the scheduler has seen that the task waits: a faster response is lost (Airflow 3.3)."""
        key = f"dag_id={DAG_ID!r}, task_id='approve', run_id={run.run_id!r}"
        parked = f"event with state success for task instance TaskInstanceKey({key}"
        found = airflow.required_actions(DAG_ID, run.run_id)
        return found if parked in airflow.log_path.read_text(errors="replace") else None

    (waiting,) = run.until(form, "the approval waits for a person")
    assert f"| {ROWS} | {ROWS - SAMPLE} |" in waiting["body"]
    assert "| $0.00" in waiting["body"]
    assert "| $20.0 |" in waiting["body"]
    assert not waiting["response_received"]
    airflow.respond(waiting["task_instance"], option, {})
    run.until(lambda: run.state == "success", "the run ends")
    assert run.task_fields("judge")["state"] == judge
    assert sum(cloud.sandbox.requests.paid().values()) - before == sent
