"""Conversations by night: each message is answered in order, with the earlier messages and answers.

docs/conversations.md describes which earlier turns a message has before it.

The messages of a day are the file `messages/2026-01-01.jsonl`, with the fields `message_id`, `user_id`, `sent_at`
and `text`; the run at midnight reads that of the day that has ended. Users whose conversation goes on the next day
need nothing else: their turns are kept below `state_uri` for 30 days. A run that is cleared sends the same
prompts, and pays for nothing again.
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

with DAG(
    "conversations",
    schedule=CronDataIntervalTimetable("@daily", timezone=ZONE),  # at midnight, for the day that has ended
    start_date=datetime(2026, 1, 1, tzinfo=ZoneInfo(ZONE)),
    catchup=False,
    max_active_runs=1,  # a run has the turns of the runs before it in its histories
    doc_md=__doc__,
) as dag:
    RunInferenceOperator(
        task_id="reply",
        source={"uri": f"{DATA}/messages/{DAY}.jsonl", "key": "message_id"},
        prompt={
            "system": "You support the customers of a shop. Answer in two sentences.",
            "template": "{{ row.text }}",
        },
        conversation={"key": ["user_id"], "order_by": "sent_at", "ttl_days": 30, "max_turns": 20},
        model="gemini-3.5-flash-lite",
        limits={"requests_per_minute": 600},
        sink={"uri": f"{DATA}/replies/{DAY}", "passthrough": ["user_id", "sent_at"]},
        state_uri=f"{DATA}/state",  # the same every night: the histories are kept here
        depends_on_past=True,  # the turns of a run that failed would be missing in the next one
        retries=2,
    )
