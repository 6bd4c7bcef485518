"""Dags with one task that runs its job on Dataflow, for all the ways in which the wait for it can end."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

HOUR = timedelta(hours=1)
CASE = "gs://rows/{{ dag_run.conf['case'] }}"


def ask(*, retries: int = 2, **kwargs) -> None:
    RunInferenceOperator(
        task_id="ask",
        source={"uri": f"{CASE}/in.jsonl", "key": ["id"]},
        prompt={"template": "Say {{ row.text }}"},
        model={"type": "gemini", "name": "gemini-2.5-flash", "project": "llmbeam-sandbox"},
        sink={"uri": f"{CASE}/out"},
        # The cases hold rows for as long as they take, which is longer than five attempts on a slow machine.
        limits={"max_in_flight": 2, "request_timeout_seconds": HOUR.total_seconds()},
        batching={"max_batch_size": 4},
        runner={
            "type": "dataflow",
            "location": "europe-west1",
            "poll_interval_seconds": 10,
            "max_workers": 1,
        },
        retries=retries,
        retry_delay=timedelta(seconds=1),
        **kwargs,
    )


with DAG("deferred", schedule=None):
    ask()

with DAG("deferred_timeout", schedule=None):
    ask(execution_timeout=HOUR, retries=0)

with DAG("deferred_run_timeout", schedule=None, dagrun_timeout=HOUR):
    ask()

with DAG("waiting", schedule=None):
    ask(deferrable=False)

with DAG("waiting_timeout", schedule=None):
    ask(deferrable=False, execution_timeout=HOUR, retries=0)
