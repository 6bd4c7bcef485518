"""The unmodified Dags with a GPU, run against the sandbox."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

pytestmark = [pytest.mark.full, pytest.mark.promise(3), pytest.mark.usefixtures("quick_endpoints")]

DAGS = Path(__file__).resolve().parents[2] / "dags"
REVIEWS = 6


@pytest.fixture
def dag_of(google, monkeypatch, tmp_path):
    """Returns a function that loads the Dag of a file, with the data of this test."""
    monkeypatch.setenv("LLMBEAM_DATA", str(tmp_path))
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", google.project)

    def load(name):
        spec = importlib.util.spec_from_file_location(name, DAGS / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.dag

    return load


def test_gemma_answers_every_review_and_the_bill_stops(run_dag, dag_of, sandbox, tmp_path):
    (tmp_path / "reviews").mkdir()
    rows = "".join(
        json.dumps({"review_id": number, "text": f"review {number}"}) + "\n" for number in range(REVIEWS)
    )
    (tmp_path / "reviews" / "a.jsonl").write_text(rows)
    dag_run, states = run_dag(dag_of("gemma_gpu_backfill"))
    assert set(states.values()) == {"success"}, states
    answers = [
        line for path in (tmp_path / "moods").rglob("answers-*.jsonl") for line in path.read_text().splitlines()
    ]
    assert len(answers) == REVIEWS
    assert dag_run.get_task_instance("check_the_bill").xcom_pull(task_ids="check_the_bill") == "nothing bills"
    assert not sandbox.bill.running
    assert not sandbox.endpoints


def test_a_failed_run_stops_the_bill_too(run_dag, dag_of, sandbox):
    dag = dag_of("gemma_gpu_backfill")
    dag.get_task("gemma.judge").retries = 0
    dag_run, states = run_dag(dag)  # there are no reviews
    assert states["gemma.judge"] == "failed"
    assert (states["gemma.teardown"], states["check_the_bill"]) == ("success", "success")
    assert dag_run.state == "failed"
    assert not sandbox.bill.running


def test_the_sweeper_runs_every_hour_and_finds_no_expired_resource(run_dag, dag_of):
    dag_run, states = run_dag(dag_of("sweep_endpoints"))
    assert states == {"sweep": "success"}
    manifest = dag_run.get_task_instance("sweep").xcom_pull(task_ids="sweep")
    assert manifest == {"cancelled": [], "deleted": [], "failed": [], "kept": [], "foreign": [], "dry_run": False}
