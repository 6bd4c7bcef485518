"""Delete forgotten GPUs and endpoints: those that are expired, and jobs on Dataflow that are too old.

A teardown does not run while its Dag is paused, nor when the scheduler does not restart. A job of this Airflow on
Dataflow is too old after three days (`max_job_age_seconds`), even if a task still waits for it. The same for cron,
where `production` is the name of this Airflow (docs/dataflow.md) and `--dry-run` only lists what would be deleted:

    llmbeam sweep --project my-project --location us-central1 --deployment production
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG, Param

from airflow_provider_llmbeam.operators.sweep import SweepEndpointsOperator

with DAG(
    "sweep_endpoints",
    schedule="@hourly",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    doc_md=__doc__,
    params={"locations": Param(["us-central1", "europe-west4"], type="array")},
    render_template_as_native_obj=True,
) as dag:
    SweepEndpointsOperator(
        task_id="sweep",
        locations="{{ params.locations }}",
        retries=2,
        retry_delay=timedelta(minutes=5),
    )
