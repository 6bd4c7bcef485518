"""`limits.budget_usd` of a job on Dataflow: enforced by the task and by each worker; paid answers are kept."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG
from llmbeam_sandbox import DataflowSettings, Latency, ModelSettings, Sandbox
from waiting import until

from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator
from airflow_provider_llmbeam.polling.poller import poll_until_result

pytestmark = [pytest.mark.full, pytest.mark.promise(2), pytest.mark.promise(4), pytest.mark.slow]

WORKERS, MAX_IN_FLIGHT, LATENCY_SECONDS, ROWS = 4, 4, 2.0, 200
#: One dollar per input token and nothing per output token; a prompt of this length has three tokens.
PRICE = {"input_usd_per_million_tokens": 1e6, "output_usd_per_million_tokens": 0}
ROW_USD = 3.0


@pytest.fixture
def sandbox():
    latency = Latency(mean_seconds=LATENCY_SECONDS)
    with Sandbox(
        buckets=("rows",), models=ModelSettings(latency=latency), dataflow=DataflowSettings(workers=WORKERS)
    ) as running:
        yield running


@pytest.fixture
def ask(run_dag, google):
    """Returns a function that runs the job with a budget and returns task instance, state and errors."""
    from google.cloud import storage

    text = "".join(json.dumps({"id": number, "text": f"row {number:03}"}) + "\n" for number in range(ROWS))
    storage.Client().bucket("rows").blob("in.jsonl").upload_from_string(text)

    def run(budget_usd, *, deferrable):
        errors = []
        with DAG(f"budget_{budget_usd:.0f}_{deferrable}", schedule=None) as dag:
            RunInferenceOperator(
                task_id="ask",
                source={"uri": "gs://rows/in.jsonl", "key": ["id"]},
                prompt={"template": "Say {{ row.text }}"},
                model={"type": "gemini", "project": google.project},
                # The two Dags of a test stand for two versions of one.
                sink={"uri": "gs://rows/out", "on_existing": "take_over"},
                limits={"budget_usd": budget_usd, "price": PRICE, "max_in_flight": MAX_IN_FLIGHT},
                runner={"type": "dataflow", "location": "europe-west1", "max_workers": WORKERS},
                job_name="one-job",
                deferrable=deferrable,
                retries=2,
                retry_delay=timedelta(0),
                on_failure_callback=lambda context: errors.append(context["exception"]),
            )
        dag_run, states = run_dag(dag)
        return dag_run.get_task_instance("ask"), states["ask"], errors

    return run


@pytest.mark.timeout(400)
def test_a_job_whose_workers_together_exceed_the_budget_is_cancelled(ask, sandbox, quick_polls):
    budget_usd = 0.4 * ROWS * ROW_USD  # a worker alone has a quarter of the rows, and stays below it
    task, state, errors = ask(budget_usd, deferrable=True)
    (error,) = errors
    assert state == "failed"
    assert isinstance(error, AirflowFailException), "a retry would have the same budget once more"
    assert task.try_number == 1
    assert f"`limits.budget_usd` allows ${budget_usd:,.2f}" in str(error)
    assert "was cancelled" in str(error)
    (job,) = sandbox.dataflow.jobs
    assert job["currentState"] == "JOB_STATE_CANCELLED"
    spent_usd = sandbox.stats()["billed_answers"] * ROW_USD
    assert budget_usd < spent_usd < ROWS * ROW_USD, "the rest was not asked"

    check_that_the_rest_is_asked(ask, sandbox, kills=1, deferrable=True)


@pytest.mark.timeout(400)
def test_a_worker_that_exceeds_the_budget_ends_the_job(ask, sandbox, monkeypatch):
    budget_usd = 0.05 * ROWS * ROW_USD  # reached by each worker between two polls
    ended = ("JOB_STATE_DONE", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED")

    def sleep(_):
        until(lambda: all(job["currentState"] in ended for job in sandbox.dataflow.jobs), timeout_seconds=200)

    monkeypatch.setattr(poll_until_result, "__defaults__", (sleep,))
    task, state, errors = ask(budget_usd, deferrable=False)
    (error,) = errors
    assert state == "failed"
    assert isinstance(error, AirflowFailException)
    assert task.try_number == 1
    assert "This process has spent $" in str(error)
    (job,) = sandbox.dataflow.jobs
    assert job["currentState"] == "JOB_STATE_FAILED"
    spent_usd = sandbox.stats()["billed_answers"] * ROW_USD
    assert WORKERS * budget_usd < spent_usd <= WORKERS * (budget_usd + (MAX_IN_FLIGHT + 1) * ROW_USD)

    check_that_the_rest_is_asked(ask, sandbox, kills=0, deferrable=False)


def check_that_the_rest_is_asked(ask, sandbox, *, kills, deferrable):
    models = sandbox._services.models
    models.settings = replace(models.settings, latency=Latency())
    task, state, errors = ask(10 * ROWS * ROW_USD, deferrable=deferrable)
    assert (state, errors) == ("success", [])
    manifest = task.xcom_pull(task_ids="ask")
    assert manifest["rows"] == {"read": ROWS, "answered": ROWS, "dead_letter": 0, "skipped": 0}
    paid = sandbox.requests.paid("gemini.generateContent")
    print("paid twice:", paid.total() - len(paid), manifest["origins"])
    assert len(paid) == ROWS
    assert paid.total() - ROWS <= kills * WORKERS * MAX_IN_FLIGHT
