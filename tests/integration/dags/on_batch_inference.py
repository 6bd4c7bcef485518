"""A Dag with one task that uses batch inference on Vertex AI, for the moments at which it can be killed."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_llmbeam.operators import run_inference
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

CASE = "gs://rows/{{ dag_run.conf['case'] }}"

# The jobs of the sandbox take seconds, not hours.
run_inference.MIN_DEFERRED_SECONDS = 1.0

with DAG("half_price", schedule=None):
    RunInferenceOperator(
        task_id="ask",
        job_name="{{ dag_run.conf['case'] }}",
        source={"uri": f"{CASE}/in.jsonl", "key": ["id"]},
        prompt={"template": "Say {{ row.text }}"},
        model={
            "type": "gemini",
            "name": "gemini-2.5-flash",
            "project": "llmbeam-sandbox",
            "location": "{{ dag_run.conf['location'] }}",
        },
        sink={"uri": f"{CASE}/out"},
        inference={
            "mode": "batch",
            "max_batch_wait_seconds": "{{ dag_run.conf['max_batch_wait_seconds'] }}",
        },
        retries=3,
        retry_delay=timedelta(seconds=1),
    )
