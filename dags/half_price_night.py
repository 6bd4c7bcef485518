"""Every review of the day at half the price: batch inference by night, and the rest online before the morning.

The time of a schedule is UTC, unless the Dag has a `start_date` with another zone. How long batch inference took
is kept below `state_uri` beside the cache, so that `auto` uses it in the next runs.
"""

from __future__ import annotations

import os
from datetime import datetime

from airflow.sdk import DAG

from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

DATA = os.environ.get("LLMBEAM_DATA", "/tmp/llmbeam")
# A day in the zone of the Dag. `{{ ds }}` is one in UTC, and a run without a logical date has none.
DAY = "{{ (dag_run.logical_date or dag_run.run_after).astimezone(dag.timezone) | ds }}"

with DAG(
    "half_price_night",
    schedule="0 22 * * *",
    start_date=datetime(2026, 1, 1),
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
        # Eight hours from the start of the run, so that the answers are there at six o'clock (UTC).
        inference={"mode": "auto", "finish_by": "PT8H"},
        limits={"requests_per_minute": 600},
        # With a model of Vertex AI this has to be a directory on Cloud Storage, gs://…
        sink={"uri": f"{DATA}/half_price/{DAY}"},
        state_uri=f"{DATA}/state",
        cache={"scope": "half_price"},
        retries=3,  # a later try attaches to the jobs that were submitted
    )
