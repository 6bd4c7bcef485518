"""Answers reviews with a small model, and sends the rows that failed to a larger one.

`RetryFailedRowsOperator` reads the dead letter of the first task and merges its answers into the same output: each
review is there once, and what is still unanswered stays in the dead letter. A run without a failed row skips the
task. `failed_kinds` selects the rows that a larger model can answer; a blocked prompt would be refused again.

docs/jobs.md lists the kinds of failure.
"""

from __future__ import annotations

import os

from airflow.sdk import DAG

from airflow_provider_llmbeam.operators.retry_failed_rows import RetryFailedRowsOperator
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

DATA = os.environ.get("LLMBEAM_DATA", "/tmp/llmbeam")
JOB = {
    "prompt": {
        "template": "List the complaints of this review.\n\n{{ row.text }}",
        "output_schema": {
            "type": "object",
            "properties": {"complaints": {"type": "array", "items": {"type": "string"}}},
            "required": ["complaints"],
        },
    },
    "sink": {"uri": f"{DATA}/complaints"},
    "state_uri": f"{DATA}/state",
}

with DAG("retry_failed_rows", schedule=None, doc_md=__doc__) as dag:
    answer = RunInferenceOperator(
        task_id="answer",
        source={"uri": f"{DATA}/reviews.csv", "key": "review_id"},
        model="gemini-2.5-flash-lite",
        generation={"max_output_tokens": 40},
        limits={"max_dead_letter_ratio": 0.5},
        retries=2,
        **JOB,
    )
    retry = RetryFailedRowsOperator(
        task_id="retry",
        failed_task_id="answer",
        failed_kinds=["truncated", "invalid_output"],
        key="review_id",
        model="gemini-3.8-flash",
        generation={"max_output_tokens": 2048},
        limits={"max_dead_letter_ratio": 1},
        retries=2,
        **JOB,
    )
    answer >> retry
