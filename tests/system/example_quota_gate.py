"""System test of Airflow with `dags/quota_gate.py`: an estimate, the sensor of quota, and Gemini on Vertex AI."""

from __future__ import annotations

from tests.system.definition import TEN_REVIEWS, SystemTest

test = SystemTest(
    dag_id="quota_gate",
    usd=0.01,
    minutes=120,
    needs="`LLMBEAM_PROJECT` with Vertex AI, Cloud Quotas and Cloud Monitoring",
    files={"reviews/1.jsonl": TEN_REVIEWS},
    output="moods/gated",
    rows=10,
)
dag = test.make_dag()
