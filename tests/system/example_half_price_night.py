"""System test of Airflow with `dags/half_price_night.py`: batch inference of the Gemini Developer API."""

from __future__ import annotations

from airflow_provider_llmbeam import DAY
from tests.system.definition import TEN_REVIEWS, SystemTest

test = SystemTest(
    dag_id="half_price_night",
    usd=0.01,
    minutes=1440,
    needs="`GOOGLE_API_KEY` of an account with batch inference",
    files={f"reviews/{DAY}.jsonl": TEN_REVIEWS},
    output=f"half_price/{DAY}",
    rows=10,
)
dag = test.make_dag()
