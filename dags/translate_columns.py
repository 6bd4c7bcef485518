"""Translate columns from BigQuery to BigQuery: a table of products in, one with German columns out.

**Need:** the connection of Google Cloud (`google_cloud_default`), and a bucket for journal, dead letter and
report. Set `LLMBEAM_PROJECT` and `LLMBEAM_BUCKET`; the dataset `shop` has the table `products`.

    $ airflow dags test translate_columns

**Result:** `shop.products_translated`, one row per `product_id`, written by one MERGE: a reader sees the old
rows or the new ones, and rows of other keys stay.

    product_id   title_de              description_de     origin   model
    17           Leichte Laufschuhe    Für Straße und …   fresh    gemini-3.5-flash-lite …

The query is billed once, not once per retry. It leaves out rows without a text, which would be paid for as empty
prompts. Rows that fail are in the dead letter below `state_uri`.
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
                WHERE title IS NOT NULL AND description IS NOT NULL
            """,
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
            "table": f"{PROJECT}.shop.products_translated",
            "answer_columns": "flat",
        },
        state_uri=f"gs://{BUCKET}/llmbeam",
        retries=2,
    )
