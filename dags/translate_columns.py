"""Translate columns from BigQuery to BigQuery: German columns beside the English ones, in your own table.

**Need:** the connection of Google Cloud (`google_cloud_default`), and a bucket for journal, dead letter and
report. Set `LLMBEAM_PROJECT` and `LLMBEAM_BUCKET`. The table `shop.products` has the two columns to fill:
`ALTER TABLE shop.products ADD COLUMN title_de STRING, ADD COLUMN description_de STRING`.

    $ airflow dags test translate_columns

**Result:** the two columns, written by one MERGE on `product_id`; all other columns and rows stay as they are.

    product_id   title                 model    title_de              description_de
    17           Light running shoes   city 2   Leichte Laufschuhe    Für Straße und …

`details: False` writes key and answer alone. Without it, or with a table that does not exist, there are also
`llmbeam_model`, `llmbeam_origin`, tokens and others; the error for a table that lacks them has the ALTER TABLE.
The same sink with PostgreSQL: `{"table": "products", "conn_id": "…", "answer_columns": "flat", "details": False}`.

The query is billed once, not once per retry; so is the MERGE. It leaves out rows that are translated already, and
rows without a text, which would be paid for as empty prompts. Rows that fail are in the dead letter below
`state_uri`.
"""

from __future__ import annotations

import os

from airflow.sdk import DAG

from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

PROJECT = os.environ.get("LLMBEAM_PROJECT", "my-project")
BUCKET = os.environ.get("LLMBEAM_BUCKET", "my-bucket")

with DAG("translate_columns", schedule=None, doc_md=__doc__) as dag:
    RunInferenceOperator(
        task_id="translate",
        source={
            "query": f"""
                SELECT product_id, title, description FROM `{PROJECT}.shop.products`
                WHERE title IS NOT NULL AND description IS NOT NULL AND title_de IS NULL
            """,
            "on_empty": "skip",
            "key": "product_id",
        },
        prompt={
            "template": (
                "Translate into German. Keep names and numbers.\n\nTitle: {{ row.title }}\n\n{{ row.description }}"
            ),
            "output_schema": {
                "type": "object",
                "properties": {"title_de": {"type": "string"}, "description_de": {"type": "string"}},
                "required": ["title_de", "description_de"],
            },
        },
        model={"type": "gemini", "name": "gemini-3.5-flash-lite", "project": PROJECT},
        limits={"requests_per_minute": 600, "budget_usd": 20},
        sink={
            "table": f"{PROJECT}.shop.products",
            "answer_columns": "flat",
            "details": False,
        },
        state_uri=f"gs://{BUCKET}/llmbeam",
        retries=2,
    )
