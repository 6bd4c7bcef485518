"""Half price by seven in the morning: batch inference by night, and what would be late is sent online.

**Need:** a file for each day, `/tmp/llmbeam/reviews/2026-11-03.jsonl`; for a model of Vertex AI, directories on
Cloud Storage.

    $ llmbeam estimate dags/half_price_night.py::judge     # what each way costs, and when it is finished
    $ airflow dags trigger half_price_night

**Result:** `/tmp/llmbeam/half_price/2026-11-03/`, and `report.html` there, with the number of rows that batch
inference has answered and what the night has cost. The task waits without a worker slot.

`finish_by` is the next seven o'clock in Berlin after the start of the run. The time of the schedule is UTC,
unless the Dag has a `start_date` with another zone. How long batch inference took is kept below `state_uri`
beside the cache, so that `auto` uses it in the next runs.

docs/batch-inference.md describes what a kill, a clear and a late batch do.
"""

from __future__ import annotations

import os
from datetime import datetime

from airflow.sdk import DAG

from airflow_provider_llmbeam import DAY
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

DATA = os.environ.get("LLMBEAM_DATA", "/tmp/llmbeam")

with DAG(
    "half_price_night",
    schedule="0 22 * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    doc_md=__doc__,
) as dag:
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
        inference={"mode": "auto", "finish_by": "07:00 Europe/Berlin"},
        limits={"requests_per_minute": 600},
        # With a model of Vertex AI this has to be a directory on Cloud Storage, gs://…
        sink={"uri": f"{DATA}/half_price/{DAY}"},
        state_uri=f"{DATA}/state",
        cache={"scope": "half_price"},
        retries=3,  # a later try attaches to the jobs that were submitted
    )
