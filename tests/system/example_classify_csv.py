"""System test of Airflow with `dags/classify_csv.py`: a process of the worker, and the Gemini Developer API."""

from __future__ import annotations

from tests.system.definition import SystemTest

test = SystemTest(
    dag_id="classify_csv",
    usd=0.01,
    minutes=5,
    needs="`GOOGLE_API_KEY`, or the connection `llmbeam_default`",
    files={"tickets.csv": "ticket_id;text\n1;The package never came.\n2;Wrong size.\n"},
    output="labels",
    rows=2,
)
dag = test.make_dag()
