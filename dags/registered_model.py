"""Tuned model of the Model Registry: evaluated and promoted when new, rolled back when its answers drift.

    airflow dags trigger promote_registered_model
    airflow dags trigger registered_model_night

docs/model-registry.md describes aliases, promotion and rollback.

A training job uploads a new version of the model with the alias `candidate`, and triggers
`promote_registered_model`. That Dag deploys the version to a GPU, evaluates it on the golden set, and moves the
alias `champion` to exactly that version; if the evaluation fails, `champion` stays. The GPU exists for the
evaluation alone.

`registered_model_night` deploys the version that is `champion` when its run starts, and keeps it for the whole
run. If the answers drift, nothing is published, and `champion` moves back to the version before, which the next
run uses. The answers of both versions are kept apart: the cache never returns an answer of another version.
"""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any

from airflow.sdk import DAG

from airflow_provider_llmbeam.operators.evaluate_inference import EvaluateInferenceOperator
from airflow_provider_llmbeam.operators.inference_endpoint import inference_endpoint
from airflow_provider_llmbeam.operators.model_registry import PromoteModelOperator, RollBackModelOperator
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator
from airflow_provider_llmbeam.spec import VertexEndpoint

DATA = os.environ.get("LLMBEAM_DATA", "/tmp/llmbeam")
PROJECT = os.environ.get("LLMBEAM_PROJECT", "my-project")
LOCATION = "us-central1"  # that of the model
MODEL = f"projects/{PROJECT}/locations/{LOCATION}/models/review-moods"
JOB: dict[str, Any] = {
    "source": {"uri": f"{DATA}/reviews/*.jsonl", "key": "review_id"},
    "prompt": {
        "template": "What is the mood of this review?\n\n{{ row.text }}",
        "output_schema": {
            "type": "object",
            "properties": {"mood": {"type": "string", "enum": ["good", "bad", "mixed"]}},
            "required": ["mood"],
        },
    },
    "cache": {"scope": "review-moods"},
    "sink": f"{DATA}/moods/registered",
    "state_uri": f"{DATA}/state",
}


def endpoint(alias: str) -> VertexEndpoint:
    """An endpoint for the version that has an alias when the run starts."""
    return VertexEndpoint(
        type="vertex",
        model=f"{MODEL}@{alias}",
        project=PROJECT,
        locations=(LOCATION,),
        machine_type="g2-standard-12",
        expires_after_seconds=4 * 3600,
    )


with DAG(
    "promote_registered_model",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    max_active_runs=1,
    doc_md=__doc__,
) as promotion:
    with inference_endpoint(endpoint=endpoint("candidate"), group_id="candidate") as candidate:
        EvaluateInferenceOperator(
            task_id="evaluate",
            golden={"uri": f"{DATA}/golden/*.jsonl", "key": "review_id"},
            metrics={"mood": "exact"},
            minimum={"mood": 0.9},
            model=candidate.model,
            **JOB,
        )
    promote = PromoteModelOperator(task_id="promote", model=candidate.version, alias="champion")
    candidate.done >> promote

with DAG(
    "registered_model_night",
    schedule="@daily",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    doc_md=__doc__,
) as night:
    with inference_endpoint(endpoint=endpoint("champion"), group_id="champion") as champion:
        ask = RunInferenceOperator(
            task_id="ask", model=champion.model, alerts={"on_drift": "fail"}, retries=2, **JOB
        )
    roll_back = RollBackModelOperator(
        task_id="roll_back",
        model=champion.version,
        alias="champion",
        errors=("DriftError",),
        trigger_rule="one_failed",
    )
    ask >> roll_back
