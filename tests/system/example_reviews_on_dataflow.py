"""System test of Airflow with `dags/reviews_on_dataflow.py`: ten rows on Dataflow, and Gemini on Vertex AI."""

from __future__ import annotations

from airflow_provider_llmbeam import DAY
from tests.system.definition import TEN_REVIEWS, SystemTest

test = SystemTest(
    dag_id="reviews_on_dataflow",
    usd=0.5,
    minutes=30,
    needs="`LLMBEAM_PROJECT` with Dataflow and Vertex AI",
    files={f"reviews/{DAY}.jsonl": TEN_REVIEWS},
    output=f"moods/day={DAY}",
    rows=10,
)
dag = test.make_dag()
