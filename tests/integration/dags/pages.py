"""A Dag whose runs have pages in Airflow; the tests make most of them by hand."""

from __future__ import annotations

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

CASE = "gs://rows/{{ dag_run.conf['case'] }}"

with DAG("pages", schedule=None):
    EmptyOperator(task_id="before") >> RunInferenceOperator(
        task_id="ask",
        source={"uri": f"{CASE}/in.jsonl", "key": ["id"]},
        prompt={"template": "Say {{ row.text }}"},
        model={"type": "gemini", "name": "gemini-2.5-flash"},
        sink={"uri": f"{CASE}/out"},
    )
