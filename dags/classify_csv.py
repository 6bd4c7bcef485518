"""Classify a CSV file: a label for each row, of a file that a spreadsheet has written.

**Need:** a CSV with a column that tells the rows apart. `csv` says how it is written; without it, commas and
UTF-8.

    $ cat /tmp/llmbeam/tickets.csv
    ticket_id;text
    1;The package never came.
    2;Wrong size.
    $ airflow dags test classify_csv

**Result:** `/tmp/llmbeam/labels/answers-00000-of-00001.jsonl`, a line per row with its key and the text of the
ticket:

    {"ticket_id": "1", "text": "The package never came.", "answer": "delivery", "llmbeam_origin": "fresh", …}

Rows with the same key end the job before anything is sent, and the message names them. Rows that fail are in
`dead_letter-00000-of-00001.jsonl`; `report.html` shows the number of rows of each label.
"""

from __future__ import annotations

import os

from airflow.sdk import DAG

from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

DATA = os.environ.get("LLMBEAM_DATA", "/tmp/llmbeam")

with DAG("classify_csv", schedule=None, doc_md=__doc__) as dag:
    RunInferenceOperator(
        task_id="classify",
        source={
            "uri": f"{DATA}/tickets.csv",
            "key": "ticket_id",
            "csv": {"delimiter": ";", "encoding": "cp1252"},
        },
        prompt={
            "template": "What is this ticket about?\n\n{{ row.text }}",
            "output_schema": ["delivery", "product", "invoice", "other"],
        },
        model="gemini-3.5-flash-lite",
        generation={"temperature": 0},
        limits={"requests_per_minute": 600},
        sink={"uri": f"{DATA}/labels", "passthrough": ["text"]},
        retries=2,
    )
