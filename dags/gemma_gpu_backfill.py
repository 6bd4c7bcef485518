"""Gemma on a GPU for one table: provision, run inference, tear down, and check that nothing is billed.

    airflow dags trigger gemma_gpu_backfill

The GPU exists while the tasks in the block run, however they end; `dags/sweep_endpoints.py` removes the endpoints
of an Airflow instance that does not restart.
"""

from __future__ import annotations

import os
from datetime import datetime

from airflow.sdk import DAG, task

from airflow_provider_llmbeam.operators.inference_endpoint import inference_endpoint
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator
from airflow_provider_llmbeam.spec import VertexEndpoint

DATA = os.environ.get("LLMBEAM_DATA", "/tmp/llmbeam")
# Tried in this order, if one has no GPU left or the project has no quota there.
LOCATIONS = ("us-central1", "europe-west4")

with DAG(
    "gemma_gpu_backfill",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    max_active_runs=1,  # each run has its own GPU
    doc_md=__doc__,
) as dag:
    with inference_endpoint(
        endpoint=VertexEndpoint(
            type="vertex",
            model="google/gemma3@gemma-3-4b-it",
            accept_eula=True,  # ai.google.dev/gemma/terms
            locations=LOCATIONS,
            expires_after_seconds=4 * 3600,
        ),
        group_id="gemma",
    ) as gemma:
        RunInferenceOperator(
            task_id="judge",
            source={"uri": f"{DATA}/reviews/*.jsonl", "key": "review_id"},
            prompt="What is the mood of this review, in one word?\n\n{{ row.text }}",
            model=gemma.model,
            generation={"max_output_tokens": 8},
            sink=f"{DATA}/moods/gemma",
            retries=2,
        )

    @task(trigger_rule="all_done")
    def check_the_bill() -> str:
        """Fails if an endpoint of this run still exists."""
        from airflow.sdk import get_current_context

        from airflow_provider_llmbeam.hooks.vertex_ai import VertexAIHook
        from airflow_provider_llmbeam.spec.endpoint.identity import RUN_LABEL, label_value

        run = label_value(get_current_context()["run_id"])
        endpoints = [one for location in LOCATIONS for one in VertexAIHook(location).list_endpoints()]
        if left := [one.name for one in endpoints if one.labels.get(RUN_LABEL) == run]:
            raise RuntimeError(f"These endpoints still exist: {', '.join(left)}.")
        return "nothing bills"

    gemma.teardown >> check_the_bill()
