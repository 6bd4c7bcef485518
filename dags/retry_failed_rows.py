"""Retry failed rows with a larger model: those that the small one has cut off, or answered against the schema.

**Need:** `/tmp/llmbeam/reviews.csv` with the columns `review_id` and `text`.

    $ airflow dags test retry_failed_rows

**Result:** `/tmp/llmbeam/complaints/`, where each review is there once: the answers of both models in `answers-…`,
what is still unanswered in `dead_letter-…`, `report.json` of the first task and `report-retry.json` with the
figures of both.

`RetryFailedRowsOperator` reads the dead letter of the first task and merges its answers by key. A run without
such a row skips the task. `failed_kinds` selects the rows that a larger model can answer: a blocked prompt would
be refused again. The first task has a higher `max_dead_letter_ratio`, as it may leave half of its rows to the
second.

docs/failed-rows.md lists the kinds of failure.
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
