"""Pay for the hard rows only: a small model answers what it is sure of, and the best one the rest, by night.

**Need:** a file for each day, `/tmp/llmbeam/tickets/2026-11-03.jsonl`, of some thousand rows: both models answer
the sample, which pays only where more rows follow.

    $ llmbeam cascade dags/cascade_night.py::sort     # what it would save; only the sample is sent
    $ airflow dags trigger cascade_night

**Result:** `/tmp/llmbeam/sorted/2026-11-03/`, with the column `llmbeam_answered_by`, and `report.html` there: the
thresholds, the rows of each model, the agreement with its interval, and the cost beside that of `model` alone.

The first run calibrates: its answers agree with those of `model` on 95 % of its rows, with 95 % confidence.
Later runs use the calibration, and `model` also answers some rows that kept the other answer. If these disagree
too often, the next run calibrates again. So later runs are monitored, not guaranteed.

docs/cascade.md has the mathematics, and the cases in which a cascade does not help.
"""

from __future__ import annotations

import os
from datetime import datetime

from airflow.sdk import DAG

from airflow_provider_llmbeam import DAY
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

DATA = os.environ.get("LLMBEAM_DATA", "/tmp/llmbeam")

with DAG(
    "cascade_night",
    schedule="0 22 * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    doc_md=__doc__,
):
    RunInferenceOperator(
        task_id="sort",
        source={"uri": f"{DATA}/tickets/{DAY}.jsonl", "key": "ticket_id"},
        prompt={
            "template": "What is this ticket about?\n\n{{ row.text }}",
            "output_schema": {
                "type": "object",
                "properties": {"topic": {"type": "string", "enum": ["bill", "delivery", "fault", "other"]}},
                "required": ["topic"],
            },
        },
        cascade={"stages": [{"model": "gemini-3.5-flash-lite"}], "target_agreement": 0.95},
        model="gemini-3.5-flash",
        inference="batch",  # of what is left for `model`, at half the price
        limits={"budget_usd": 20},
        sink={"uri": f"{DATA}/sorted/{DAY}"},
        state_uri=f"{DATA}/state",
        retries=3,
    )
