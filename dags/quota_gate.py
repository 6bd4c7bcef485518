"""Wait for quota: a nightly job starts only if it can finish at the free rate, or in the next window.

    airflow dags trigger quota_gate

`estimate` returns the demand of the job, and `night_gate` waits up to an hour for enough quota to finish within
the night. Without enough quota the gate is skipped, and the job waits for the window of the day. The gate that
succeeds returns the rate and the location for the job.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta

from airflow.providers.standard.sensors.date_time import DateTimeSensorAsync
from airflow.sdk import DAG

from airflow_provider_llmbeam.operators.estimate import EstimateInferenceOperator
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator
from airflow_provider_llmbeam.sensors.quota import QuotaHealthSensor

DATA = os.environ.get("LLMBEAM_DATA", "/tmp/llmbeam")
PROJECT = os.environ.get("LLMBEAM_PROJECT", "my-project")
# The team's share of a quota that other teams also use.
LIMITS = {"requests_per_minute": 600, "budget_usd": 20}
MODEL = {"type": "gemini", "name": "gemini-3.5-flash-lite", "project": PROJECT}
JOB = {
    "source": {"uri": f"{DATA}/reviews/*.jsonl", "key": "review_id"},
    "prompt": "What is the mood of this review, in one word?\n\n{{ row.text }}",
    "sink": f"{DATA}/moods/gated",
}
# The window of the night starts with the run, and that of the day 12 hours later.
NIGHT, WORKDAY = timedelta(hours=5), timedelta(hours=8)
DAY_OPENS = "{{ dag_run.run_after + macros.timedelta(hours=12) }}"
OPEN_GATE = "(ti.xcom_pull(task_ids='night_gate') or ti.xcom_pull(task_ids='day_gate'))"

with DAG(
    "quota_gate",
    schedule="0 1 * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    render_template_as_native_obj=True,  # so that the limits below are a dict and not a string
    doc_md=__doc__,
) as dag:
    estimate = EstimateInferenceOperator(
        task_id="estimate", job_task_id="judge", model=MODEL, limits=LIMITS, **JOB
    )

    def gate(task_id: str, window: timedelta, **kwargs: object) -> QuotaHealthSensor:
        return QuotaHealthSensor(
            task_id=task_id,
            model=MODEL,
            locations=("global", "us-central1"),
            demand=estimate.output["demand"],
            window=window,
            limits=LIMITS,
            timeout=timedelta(hours=1),
            poke_interval=60,
            exponential_backoff=True,
            max_wait=600,
            **kwargs,
        )

    night_gate = gate("night_gate", NIGHT, soft_fail=True)
    day = DateTimeSensorAsync(
        task_id="day",
        target_time=DAY_OPENS,
        trigger_rule="all_skipped",
    )
    day_gate = gate("day_gate", WORKDAY)
    judge = RunInferenceOperator(
        task_id="judge",
        model=f"{{{{ {OPEN_GATE}.model }}}}",
        limits=f"{{{{ {OPEN_GATE}.limits }}}}",
        trigger_rule="none_failed_min_one_success",
        retries=2,
        **JOB,
    )
    night_gate >> day >> day_gate
    [night_gate, day_gate] >> judge
