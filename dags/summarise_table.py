"""Summarises a column of a table: the smallest complete Dag."""

import os

from airflow.sdk import DAG

from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

DATA = os.environ.get("LLMBEAM_DATA", "/tmp/llmbeam")

with DAG("summarise_table", schedule=None):
    RunInferenceOperator(
        task_id="summarise",
        source={"uri": f"{DATA}/tickets/*.csv", "key": "ticket_id"},
        prompt="Summarise this ticket in one sentence: {{ row.text }}",
        model="gemini-3.5-flash-lite",
        limits={"requests_per_minute": 600},
        sink={"uri": f"{DATA}/summaries", "format": "parquet"},
        retries=2,
    )
