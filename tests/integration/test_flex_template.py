"""Jobs launched from a Flex Template: the sandbox runs this interpreter in place of the container."""

from __future__ import annotations

import json

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG
from build_template import template

from airflow_provider_llmbeam.operators import run_inference
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

pytestmark = [pytest.mark.full, pytest.mark.promise(2), pytest.mark.slow, pytest.mark.usefixtures("quick_polls")]

ROWS = 40
TEMPLATE_URI = "gs://rows/llmbeam/template.json"


@pytest.fixture
def bucket(google):
    """The bucket `rows` with the template and `in.jsonl`."""
    from google.cloud import storage

    found = storage.Client().bucket("rows")
    text = "".join(json.dumps({"id": number, "text": f"row {number}"}) + "\n" for number in range(ROWS))
    found.blob("in.jsonl").upload_from_string(text)
    made = json.dumps(template("images/llmbeam:1"))
    found.blob("llmbeam/template.json").upload_from_string(made)
    return found


def ask(run_dag, project, *, runner=None, **changes):
    """Runs the job; returns the task and its errors."""
    errors = []
    arguments = {
        "source": {"uri": "gs://rows/in.jsonl", "key": ["id"]},
        "prompt": {"template": "Say {{ row.text }}"},
        "model": {"type": "gemini", "project": project},
        "sink": {"uri": "gs://rows/out"},
        "limits": {"max_in_flight": 2},
        "runner": {
            "type": "dataflow",
            "location": "europe-west1",
            "flex_template": TEMPLATE_URI,
            "labels": {"team": "reviews"},
            **(runner or {}),
        },
    }
    with DAG("flex", schedule=None) as dag:
        RunInferenceOperator(
            task_id="ask",
            job_name="one-job",
            on_failure_callback=lambda context: errors.append(context["exception"]),
            **(arguments | changes),
        )
    dag_run, _ = run_dag(dag)
    return dag_run.get_task_instance("ask"), errors


@pytest.mark.timeout(200)
def test_a_flex_template_launches_one_job_that_a_later_try_attaches_to(
    run_dag, google, sandbox, bucket, monkeypatch
):
    def time_out(_):
        raise TimeoutError

    left_running = {"cancel_on_kill": False}
    model = sandbox.faults.hold("gemini.generateContent")
    with monkeypatch.context() as patched:
        patched.setattr(run_inference, "poll_until_result", time_out)
        task, _ = ask(run_dag, google.project, runner=left_running, deferrable=False)
    assert task.state == "failed", "it ran into its timeout"
    (job,) = sandbox.dataflow.jobs
    assert job["currentState"] not in ("JOB_STATE_DONE", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED")

    model.release()
    task, errors = ask(run_dag, google.project, runner=left_running)
    assert (task.state, errors) == ("success", [])
    (job,) = sandbox.dataflow.jobs
    assert job["currentState"] == "JOB_STATE_DONE"
    assert job["labels"]["team"] == "reviews"
    assert job["name"] == f"{job['labels']['llmbeam-job']}-{job['labels']['llmbeam-spec']}"
    answers = bucket.blob("out/answers-00000-of-00001.jsonl").download_as_text().splitlines()
    assert sorted(json.loads(line)["id"] for line in answers) == [*range(ROWS)]
    assert sandbox.stats()["billed_answers"] == ROWS
    assert task.xcom_pull(task_ids="ask")["rows"] == {
        "read": ROWS,
        "answered": ROWS,
        "dead_letter": 0,
        "skipped": 0,
    }


@pytest.mark.timeout(100)
def test_the_task_reports_a_missing_source_that_the_launcher_found(run_dag, google, sandbox, bucket):
    source = {"uri": "gs://rows/in*.csv", "key": ["id"]}
    task, (error,) = ask(run_dag, google.project, source=source, retries=2)
    assert task.state == "failed"
    assert isinstance(error, AirflowFailException), "a retry would repeat it"
    assert "`source.uri` 'gs://rows/in*.csv' matches no file" in str(error)
    (job,) = sandbox.dataflow.jobs
    assert job["currentState"] == "JOB_STATE_FAILED"
    assert sandbox.stats()["billed_answers"] == 0
