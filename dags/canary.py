"""Canary of another model: it gets a share of the rows of every night, and the usual model all others.

`share` divides the rows by a hash of their keys: each row belongs to one of the two tasks, and to the same one
every night. Both write into one output, by key. The page "Inference" of the run has the reports of both tasks:
failures, labels, lengths, cost and latency.

To make the other model the usual one, change `CANARY` step by step, e.g. to 0.25 and 0.5, and read the reports
between. A larger share includes the rows of the smaller one, whose answers are in the cache and are not paid for
again. At the end, give the `model`, `generation` and `limits` of `canary` to `usual`, remove its `share`, and
delete the task `canary`.
"""

from __future__ import annotations

import os
from datetime import datetime

from airflow.sdk import DAG

from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

DATA = os.environ.get("LLMBEAM_DATA", "/tmp/llmbeam")
CANARY = 0.05
SOURCE = {"uri": f"{DATA}/reviews.csv", "key": "review_id"}
JOB = {
    "prompt": {
        "template": "Is this review good, mixed or bad?\n\n{{ row.text }}",
        "output_schema": {
            "type": "object",
            "properties": {"mood": {"type": "string", "enum": ["good", "mixed", "bad"]}},
            "required": ["mood"],
        },
    },
    "cache": {"scope": "moods"},
    "state_uri": f"{DATA}/state",
}

with DAG(
    "canary",
    schedule="@daily",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    doc_md=__doc__,
) as dag:
    usual = RunInferenceOperator(
        task_id="usual",
        source={**SOURCE, "share": [CANARY, 1]},
        model="gemini-3.5-flash-lite",
        limits={"requests_per_minute": 600},
        sink={"uri": f"{DATA}/moods"},
        retries=2,
        **JOB,
    )
    canary = RunInferenceOperator(
        task_id="canary",
        # A small source may have no row in the share.
        source={**SOURCE, "share": [0, CANARY], "on_empty": "skip"},
        model={"type": "gemini", "name": "gemini-3.8-flash"},
        generation={"thinking_level": "low", "max_output_tokens": 2048},
        limits={"requests_per_minute": 300},
        sink={"uri": f"{DATA}/moods", "on_existing": "merge"},
        retries=2,
        **JOB,
    )
    usual >> canary
