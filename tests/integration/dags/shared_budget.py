"""Dag whose tasks spend a budget over the runs of a month, of the Dag, and of its backfills."""

from __future__ import annotations

import os
from datetime import datetime
from zoneinfo import ZoneInfo

from airflow.sdk import DAG

from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

DATA = os.environ.get("LLMBEAM_DATA", "/tmp/llmbeam") + "/shared_budget"

with DAG(
    "shared_budget",
    schedule="@daily",
    start_date=datetime(2020, 1, 1, tzinfo=ZoneInfo("UTC")),
    catchup=False,
):
    for over in ("month", "dag", "backfill"):
        RunInferenceOperator(
            task_id=over,
            source={"uri": f"{DATA}/in/*.jsonl", "key": ["id"]},
            prompt="{{ row.text }}",
            model="gemini-3.5-flash-lite",
            generation={"max_output_tokens": 30},
            limits={
                "max_in_flight": 2,
                "price": {"input_usd_per_million_tokens": 1e6, "output_usd_per_million_tokens": 1e6},
                "budget": {"usd": 400, "over": over},
            },
            sink=f"{DATA}/{over}/" + "{{ run_id }}",
            state_uri=f"{DATA}/state-{over}",
        )
