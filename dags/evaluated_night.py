"""Golden set before a nightly job: a prompt that got worse does not run.

**Need:** rows with the right answers, `/tmp/llmbeam/golden/moods.jsonl`, a few hundred of them:

    {"review_id": "g1", "text": "Broke after a day.", "expected_mood": "bad"}

    $ airflow dags trigger evaluated_night
    $ llmbeam evaluate dags/evaluated_night.py::evaluate     # the same from a shell, before you deploy

**Result:** the score with its interval in the log and on the page "Inference" of the task. If fewer than 90 % of
the moods are right, or a score is more than 0.03 below that of the last accepted evaluation, `evaluate` fails,
its log lists the wrong answers, and `night` does not start. Both tasks share a cache: as long as nothing has
changed, the evaluation costs nothing, and the job pays for no row that the golden set has as well.

docs/evaluate.md describes the golden set, the metrics and the thresholds.
"""

from __future__ import annotations

import os
from datetime import datetime

from airflow.sdk import DAG

from airflow_provider_llmbeam.operators.evaluate_inference import EvaluateInferenceOperator
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

DATA = os.environ.get("LLMBEAM_DATA", "/tmp/llmbeam")
JOB = {
    "source": {"uri": f"{DATA}/reviews/*.jsonl", "key": "review_id"},
    "prompt": {
        "template": "What is the mood of this review?\n\n{{ row.text }}",
        "output_schema": {
            "type": "object",
            "properties": {"mood": {"type": "string", "enum": ["good", "bad", "mixed"]}},
            "required": ["mood"],
        },
    },
    "model": "gemini-3.5-flash-lite",
    "limits": {"budget_usd": 20},
    "cache": {"scope": "moods"},
    "sink": f"{DATA}/moods/evaluated",
    "state_uri": f"{DATA}/state",
}

with DAG(
    "evaluated_night",
    schedule="@daily",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    doc_md=__doc__,
) as dag:
    evaluate = EvaluateInferenceOperator(
        task_id="evaluate",
        golden={"uri": f"{DATA}/golden/*.jsonl", "key": "review_id"},
        metrics={
            "mood": "exact",  # with the column `expected_mood`
            "by_label": {"type": "label_f1", "field": "mood", "expected": "expected_mood"},
        },
        minimum={"mood": 0.9},
        max_drop=0.03,
        retries=2,
        **JOB,
    )
    night = RunInferenceOperator(task_id="night", retries=2, **JOB)
    evaluate >> night
