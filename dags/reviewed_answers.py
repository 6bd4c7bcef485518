"""Review by people: twenty answers of a night, whose verdicts become rows of a golden set.

    airflow dags trigger reviewed_answers

docs/review.md describes the sample, the form and the golden rows.

`sample` selects answers of the run at random, an equal number of each mood, and none of a row that the golden
set has already. Each becomes a task `review` with a form under "Required Actions": a person accepts the answer,
corrects it, or leaves it out. The tasks wait without a worker slot; after two days an answer that nobody has
reviewed is left out. `add_golden_rows` adds the others to the golden set, with which the Dag `evaluated_night`
evaluates the prompt.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_provider_llmbeam.operators.review_answers import (
    AddGoldenRowsOperator,
    SampleAnswersOperator,
    review_answers,
)
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
    "sink": f"{DATA}/moods/reviewed",
    "state_uri": f"{DATA}/state",
}

with DAG(
    "reviewed_answers",
    schedule="@daily",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    doc_md=__doc__,
) as dag:
    night = RunInferenceOperator(task_id="night", retries=2, **JOB)
    sample = SampleAnswersOperator(
        task_id="sample",
        manifest=night.output,
        rows=20,
        seed="{{ dag_run.run_after.strftime('%Y%m%d') }}",  # other rows in the next run
        stratify_by="mood",
        columns=["review_id", "text"],
        golden={"uri": f"{DATA}/golden/*.jsonl", "key": "review_id"},
        **JOB,
    )
    review = review_answers(sample.output, response_timeout=timedelta(days=2))
    AddGoldenRowsOperator(
        task_id="add_golden_rows",
        verdicts=review.output,
        golden_uri=f"{DATA}/golden/reviewed.jsonl",
        **JOB,
    )
