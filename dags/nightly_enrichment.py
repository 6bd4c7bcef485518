"""Nightly enrichment: a category and a summary for the README of each installed Python package."""

from __future__ import annotations

import os
from datetime import datetime

from airflow.sdk import DAG, ObjectStoragePath, Param, task

from airflow_provider_llmbeam import DAY
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

DATA = os.environ.get("LLMBEAM_DATA", "/tmp/llmbeam")
CATEGORIES = ["cloud", "data", "web", "security", "developer tools", "machine learning", "system", "other"]

with DAG(
    "nightly_enrichment",
    schedule="@daily",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,  # two runs at once would share one quota
    doc_md=__doc__,
    params={
        "model_type": Param("gemini", enum=["gemini", "openai"]),
        "model_name": Param("gemini-3.5-flash-lite", type="string"),
    },
):

    @task
    def extract(uri: str) -> int:
        """Writes one JSON line per installed package."""
        import json
        from importlib.metadata import distributions

        packages = {
            found.metadata["Name"]: {
                "package": found.metadata["Name"],
                "version": found.version,
                "readme": found.metadata.get_payload() or found.metadata.get("Description", ""),
            }
            for found in distributions()
        }
        path = ObjectStoragePath(uri)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(packages[name]) + "\n" for name in sorted(packages)))
        return len(packages)

    enrich = RunInferenceOperator(
        task_id="enrich",
        source={"uri": f"{DATA}/{DAY}/readmes.jsonl", "key": "package"},
        prompt={
            "system": "You catalogue Python packages. Judge only by the README you are given.",
            "template": "README of {{ row.package }} {{ row.version }}:\n\n{{ row.readme }}",
            "output_schema": {
                "type": "object",
                "properties": {
                    "category": {"type": "string", "enum": CATEGORIES},
                    "summary": {"type": "string", "maxLength": 200},
                },
                "required": ["category", "summary"],
            },
        },
        model={"type": "{{ params.model_type }}", "name": "{{ params.model_name }}"},
        limits={"requests_per_minute": 600},
        sink=f"{DATA}/{DAY}/enriched",
        state_uri=f"{DATA}/state",  # the same every night: the report compares the run with those before it
        retries=2,
    )

    extract(f"{DATA}/{DAY}/readmes.jsonl") >> enrich
