"""A deferred task with a `runner` of type `flink`, on the emulated Flink with Prism as the cluster."""

from __future__ import annotations

import json

import pytest
from airflow.sdk import DAG
from llmbeam_sandbox import FlinkSettings

from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator
from tests.pipeline.portable_service import job_service, worker_pool

# Beam's pool leaves the pipe of each worker open.
pytestmark = [
    pytest.mark.full,
    pytest.mark.promise(2),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def flink(sandbox, monkeypatch):
    """The `runner` of a cluster with one task manager."""
    with job_service() as job_endpoint, worker_pool(monkeypatch) as pool:
        sandbox.flink.settings = FlinkSettings(job_endpoint=job_endpoint, task_managers=1)
        yield {
            "type": "flink",
            "rest_url": sandbox.flink_url,
            "job_endpoint": job_endpoint,
            "flink_version": "1.19",
            "environment": {"type": "EXTERNAL", "address": pool},
        }


def test_a_deferred_task_answers_each_row_once_and_a_second_run_sends_nothing(
    run_dag, sandbox, flink, quick_polls, connection, monkeypatch, tmp_path
):
    monkeypatch.setenv("GOOGLE_API_KEY", connection["password"])  # the workers' own
    rows = [{"id": number, "text": f"row {number}"} for number in range(20)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with DAG("on_flink", schedule=None) as dag:
        RunInferenceOperator(
            task_id="ask",
            source={"uri": str(tmp_path / "in.jsonl"), "key": ["id"]},
            prompt="Say {{ row.text }}",
            model={"type": "gemini", "base_url": sandbox.gemini_url},
            sink={"uri": str(tmp_path / "out")},
            state_uri=str(tmp_path / "state"),
            cache={"scope": "flink"},
            runner=flink,
            deferrable=True,
        )
    for origin in ("fresh", "cached"):
        dag_run, states = run_dag(dag)
        assert states == {"ask": "success"}
        manifest = dag_run.get_task_instance("ask").xcom_pull(task_ids="ask")
        assert manifest["rows"] == {"read": 20, "answered": 20, "dead_letter": 0, "skipped": 0}
        assert manifest["origins"][origin] == 20
    assert len([record for record in sandbox.requests if record.method == "gemini.generateContent"]) == 20
    assert len(sandbox.flink.jobs.all()) == 2
