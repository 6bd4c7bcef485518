"""Backfill two years: the reviews of each day, nightly and over years, with one quota.

**Need:** a file for each day, `/tmp/llmbeam/reviews/2026-11-03.jsonl`, and a scheduler that runs.

    $ airflow backfill create --dag-id backfill --from-date 2024-11-01 --to-date 2026-11-01 --max-active-runs 4

**Result:** a partition for each day, `/tmp/llmbeam/moods/day=2026-11-03/`, and a row for each run under "Inference
history" of the task. The days of a backfill use 30 % of the quota, so that the nightly run goes on.

Answers are kept: repeating the backfill with `--reprocess-behavior completed` sends no request, a review that
appears again on another day costs nothing, and a day that was killed sends only its rest. To know the cost
before:

    $ llmbeam estimate dags/backfill.py::judge --date 2026-11-03
"""

from __future__ import annotations

import os
from datetime import datetime
from zoneinfo import ZoneInfo

from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_provider_llmbeam import DAY
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

DATA = os.environ.get("LLMBEAM_DATA", "/tmp/llmbeam")
# The zone of the schedule and of the days.
ZONE = "UTC"
# All days of a backfill together use 30 % of the quota; the nightly run keeps the rest. With several workers, set
# `limits.expected_workers` as well: tasks share a quota only with those of their own worker.
SHARE = "{{ 0.3 if dag_run.run_type == 'backfill' else 0.7 }}"

with DAG(
    "backfill",
    schedule=CronDataIntervalTimetable("@daily", timezone=ZONE),  # at midnight, for the day that has ended
    start_date=datetime(2020, 1, 1, tzinfo=ZoneInfo(ZONE)),
    catchup=False,
    doc_md=__doc__,
):
    RunInferenceOperator(
        task_id="judge",
        source={"uri": f"{DATA}/reviews/{DAY}.jsonl", "key": "review_id"},
        prompt={
            "template": "What is the mood of this review?\n\n{{ row.text }}",
            "output_schema": {
                "type": "object",
                "properties": {"mood": {"type": "string", "enum": ["good", "mixed", "bad"]}},
                "required": ["mood"],
            },
        },
        model="gemini-3.5-flash-lite",
        limits={"requests_per_minute": 600, "share_ratio": SHARE},
        sink={"uri": f"{DATA}/moods/day={DAY}", "format": "parquet"},
        state_uri=f"{DATA}/state",
        cache={"scope": "moods"},
        retries=3,
    )
