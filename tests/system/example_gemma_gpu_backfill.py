"""System test of Airflow with `dags/gemma_gpu_backfill.py`: an endpoint with a GPU for one run."""

from __future__ import annotations

from tests.system.definition import TEN_REVIEWS, SystemTest

test = SystemTest(
    dag_id="gemma_gpu_backfill",
    usd=3.0,
    minutes=60,
    needs="`LLMBEAM_PROJECT` with Vertex AI and quota for one GPU in us-central1 or europe-west4",
    files={"reviews/1.jsonl": TEN_REVIEWS},
    output="moods/gemma",
    rows=10,
)
dag = test.make_dag()
