"""Approval between estimate and run: a person sees the price before a table is paid for.

    airflow dags trigger approved_run

`estimate` sends a few prompts and computes the cost of the rest. `approve` shows it under "Required Actions", and
waits for a response without a worker slot. After "Approve" `judge` sends the rest: the answers of the estimate are
in its journal. After "Reject", or twelve hours without a response, it is skipped, and nothing more is sent.

`assigned_users` of `approve` names who may respond, and `notifiers` tells them. The figures are those of
docs/estimate.md.
"""

from __future__ import annotations

import os
from datetime import timedelta

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG

from airflow_provider_llmbeam.operators.estimate import EstimateInferenceOperator
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

DATA = os.environ.get("LLMBEAM_DATA", "/tmp/llmbeam")
JOB = {
    "source": {"uri": f"{DATA}/reviews/*.jsonl", "key": "review_id"},
    "prompt": "What is the mood of this review, in one word?\n\n{{ row.text }}",
    "model": "gemini-3.5-flash-lite",
    "limits": {"budget_usd": 20},
    "sink": f"{DATA}/moods/approved",
    "state_uri": f"{DATA}/state",
}
FIGURES = """\
{%- set found = ti.xcom_pull(task_ids="estimate") -%}
| rows | prompts to send | tokens in | tokens out | cost | budget |
|---|---|---|---|---|---|
| {{ found.rows }} | {{ found.requests }} | {{ found.input_tokens }} | {{ found.output_tokens }} \
| ${{ "%.4f" | format(found.planned_cost_usd) }} \
| ${{ found.budget_usd }} |
"""

with DAG("approved_run", schedule=None, doc_md=__doc__) as dag:
    estimate = EstimateInferenceOperator(
        task_id="estimate", job_task_id="judge", on_exceeds_budget="report", **JOB
    )
    approve = ApprovalOperator(
        task_id="approve",
        subject="Pay for the moods of {{ run_id }}?",
        body=FIGURES,
        defaults="Reject",
        response_timeout=timedelta(hours=12),
    )
    judge = RunInferenceOperator(task_id="judge", retries=2, **JOB)
    estimate >> approve >> judge
