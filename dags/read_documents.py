"""Extract fields from documents: invoices that arrive as photographs and as PDF files.

**Need:** `/tmp/llmbeam/invoices.csv`, a line per document with the name of its file, and the files in
`/tmp/llmbeam/invoices/`.

    $ cat /tmp/llmbeam/invoices.csv
    invoice_id,sender,file
    1,Shop,1.pdf
    2,Shop,2.png
    $ airflow dags test read_documents

**Result:** `/tmp/llmbeam/read_invoices/answers-00000-of-00001.jsonl`, a line per document:

    {"invoice_id": "1", "answer": {"number": "R-17", "total": 119.0, "currency": "EUR"}, …}

Images and documents go to the model in the same way: the MIME type follows from the extension. A row whose file
does not exist goes to the dead letter with the name of the file, before a request; with more than 10 % of such
rows the task fails. The model sees what the schema asks for: nest lists and objects in `output_schema` for line
items.

docs/media.md describes which files a model takes, how many tokens they are, and which of them a row may name.
"""

from __future__ import annotations

import os

from airflow.sdk import DAG

from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

DATA = os.environ.get("LLMBEAM_DATA", "/tmp/llmbeam")

with DAG("read_documents", schedule=None, doc_md=__doc__) as dag:
    RunInferenceOperator(
        task_id="read",
        source={"uri": f"{DATA}/invoices.csv", "key": "invoice_id"},
        prompt={
            "template": "Read this invoice. Its sender is {{ row.sender }}.",
            "media": [{"uri": f"{DATA}/invoices/{{{{ row.file }}}}"}],
            "output_schema": {
                "type": "object",
                "properties": {
                    "number": {"type": "string"},
                    "total": {"type": "number"},
                    "currency": {"type": "string", "enum": ["EUR", "USD", "GBP"]},
                },
                "required": ["number", "total", "currency"],
            },
        },
        model="gemini-3.5-flash-lite",
        limits={"requests_per_minute": 600, "max_dead_letter_ratio": 0.1},
        sink={"uri": f"{DATA}/read_invoices"},
        retries=2,
    )
