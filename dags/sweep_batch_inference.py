"""Cancel forgotten batch inference: jobs that no run waits for, and what they left, every night.

The jobs of a task that is marked as failed, or whose Dag run is deleted, go on at the provider and bill.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_provider_llmbeam.operators.sweep_batch_inference import SweepBatchInferenceOperator

with DAG(
    "sweep_batch_inference",
    schedule="@daily",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    doc_md=__doc__,
) as dag:
    SweepBatchInferenceOperator(
        task_id="sweep",
        # One task for each provider and account. With a project in the connection this is Vertex AI.
        model="gemini-3.5-flash-lite",
        # Longer than the longest `inference.max_batch_wait_seconds` of the jobs, which is a day by default.
        older_than_seconds=timedelta(days=2).total_seconds(),
        retries=2,
        retry_delay=timedelta(minutes=5),
    )
