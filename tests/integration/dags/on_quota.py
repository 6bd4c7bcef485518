"""Dags with sensors that wait for headroom, and the tasks after them. Each model has its own traffic."""

from __future__ import annotations

from airflow.sdk import DAG, task

from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator
from airflow_provider_llmbeam.sensors.quota import QuotaHealthSensor

PROJECT = "llmbeam-sandbox"


def gate(name: str, **kwargs) -> QuotaHealthSensor:
    return QuotaHealthSensor(
        task_id="gate",
        model={"type": "gemini", "name": name, "project": PROJECT},
        limits={"max_in_flight": 2},
        probe_requests=0,
        poke_interval=2,
        **kwargs,
    )


@task
def say() -> str:
    return "here"


with DAG("gated", schedule=None):
    room = gate("gemini-2.5-flash", pool="one_slot")
    RunInferenceOperator(
        task_id="ask",
        source={"uri": "gs://rows/in.jsonl", "key": ["id"]},
        prompt={"template": "Say {{ row.text }}"},
        model=room.output["model"],
        limits=room.output["limits"],
        sink={"uri": "gs://rows/out"},
    )

with DAG("neighbour", schedule=None):
    say.override(pool="one_slot")()

with DAG("impatient", schedule=None):
    late = gate("gemini-2.5-pro", timeout=8, soft_fail=True)
    late >> say.override(task_id="ask")()
    late >> say.override(task_id="instead", trigger_rule="all_skipped")()

with DAG("patient", schedule=None):
    gate("gemini-2.5-pro", timeout=3600)

with DAG("survivor", schedule=None):
    gate("gemini-2.5-flash-lite", timeout=3600)

with DAG("deadline", schedule=None):
    gate("gemini-2.5-pro", timeout=75, soft_fail=True)
