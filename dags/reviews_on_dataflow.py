"""Classify files on Dataflow: the mood of each review on Cloud Storage, every night, by Gemini on Vertex AI.

The run at midnight reads the file of the day that has ended. The task releases its worker slot while Dataflow
works. To run the same file unchanged on a laptop:

    export LLMBEAM_RUNNER='{"type": "direct"}'

docs/dataflow.md lists the requirements of the first run.
"""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_provider_llmbeam import DAY
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

PROJECT = os.environ.get("LLMBEAM_PROJECT", "my-project")
BUCKET = os.environ.get("LLMBEAM_BUCKET", "my-bucket")
RUNNER = json.loads(os.environ.get("LLMBEAM_RUNNER", '{"type": "dataflow", "location": "europe-west1"}'))
# The zone of the schedule and of the days.
ZONE = "UTC"

with DAG(
    "reviews_on_dataflow",
    schedule=CronDataIntervalTimetable("@daily", timezone=ZONE),  # at midnight, for the day that has ended
    start_date=datetime(2026, 1, 1, tzinfo=ZoneInfo(ZONE)),
    catchup=False,
    max_active_runs=1,  # two runs at once would share one quota
    doc_md=__doc__,
) as dag:
    RunInferenceOperator(
        task_id="judge",
        source={"uri": f"gs://{BUCKET}/reviews/{DAY}.jsonl", "key": "review_id"},
        prompt={
            "template": "What is the mood of this review?\n\n{{ row.text }}",
            "output_schema": {
                "type": "object",
                "properties": {"mood": {"type": "string", "enum": ["good", "mixed", "bad"]}},
                "required": ["mood"],
            },
        },
        model={"type": "gemini", "name": "gemini-3.5-flash-lite", "project": PROJECT},
        limits={"requests_per_minute": 600, "budget_usd": 20},
        sink=f"gs://{BUCKET}/moods/day={DAY}",
        state_uri=f"gs://{BUCKET}/state",
        runner=RUNNER,
        retries=3,
        execution_timeout=timedelta(hours=6),
    )
