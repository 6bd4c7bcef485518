"""`RunInferenceOperator` on the sandbox's Dataflow, in one process: what needs no scheduler."""

from __future__ import annotations

import json

import pytest
from airflow.sdk import DAG

from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

ROWS = 40


@pytest.fixture
def bucket(google):
    """The bucket `rows` with `in.jsonl`."""
    from google.cloud import storage

    found = storage.Client().bucket("rows")
    text = "".join(json.dumps({"id": number, "text": f"row {number}"}) + "\n" for number in range(ROWS))
    found.blob("in.jsonl").upload_from_string(text)
    return found


def task(project, *, runner=None, **kwargs):
    return RunInferenceOperator(
        task_id="ask",
        source={"uri": "gs://rows/in.jsonl", "key": ["id"]},
        prompt={"template": "Say {{ row.text }}"},
        model={"type": "gemini", "name": "gemini-2.5-flash", "project": project},
        sink={"uri": "gs://rows/out"},
        runner={"type": "dataflow", "location": "europe-west1", "poll_interval_seconds": 10, **(runner or {})},
        **kwargs,
    )


@pytest.mark.parametrize("deferrable", [True, False])
def test_a_job_on_dataflow_answers_every_row(run_dag, google, sandbox, bucket, deferrable):
    with DAG("on_dataflow", schedule=None) as dag:
        task(google.project, deferrable=deferrable)
    dag_run, states = run_dag(dag)
    assert states == {"ask": "success"}
    (job,) = sandbox.dataflow.jobs
    assert job["currentState"] == "JOB_STATE_DONE"
    answers = bucket.blob("out/answers-00000-of-00001.jsonl").download_as_text().splitlines()
    assert len(answers) == ROWS == sandbox.stats()["billed_answers"]
    manifest = dag_run.get_task_instance("ask").xcom_pull(task_ids="ask")
    assert manifest["rows"] == {"read": ROWS, "answered": ROWS, "dead_letter": 0}
    assert manifest["cost_usd"] > 0
