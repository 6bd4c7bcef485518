"""Dags with a task that has its own endpoint, and a Dag with the sweeper."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, get_current_context, task

from airflow_provider_llmbeam.operators.inference_endpoint import inference_endpoint
from airflow_provider_llmbeam.operators.sweep import SweepEndpointsOperator

LOCATION = "us-central1"
GARDEN = {"type": "vertex", "model": "google/gemma3@gemma-3-4b-it", "accept_eula": True, "locations": [LOCATION]}
CONTAINER = {
    "type": "vertex",
    "model": "Qwen/Qwen3-4B",
    "container_image": "vllm/vllm-openai:v0.11.0",
    "machine_type": "g2-standard-12",
    "locations": [LOCATION],
}
CLOUD_RUN = {"type": "cloud_run", "model": "Qwen/Qwen3-4B", "locations": [LOCATION]}
#: Minimum of `expires_after_seconds`.
EXPIRES_SECONDS = 600
SECOND = timedelta(seconds=1)


@task(task_id="work", retries=0)
def wait_for_instruction() -> None:
    """Runs until the test creates the file `succeed` or `fail`."""
    words = Path(get_current_context()["dag_run"].conf["words"])
    while not (words / "succeed").exists():
        if (words / "fail").exists():
            raise RuntimeError("The test wants it so.")
        time.sleep(0.2)


def block(endpoint: dict, *, deferrable: bool = True, **provision: Any) -> None:
    with inference_endpoint(
        endpoint=endpoint,
        deferrable=deferrable,
        provision={"poll_interval_seconds": 1.0, "retries": 0, "retry_delay": SECOND, **provision},
        teardown={"retry_delay": SECOND},
    ):
        wait_for_instruction()


with DAG("garden", schedule=None):
    block(GARDEN)

with DAG("garden_expiring", schedule=None):
    block({**GARDEN, "expires_after_seconds": EXPIRES_SECONDS})

with DAG("garden_timeout", schedule=None):
    block(GARDEN, execution_timeout=timedelta(hours=1))

with DAG("container", schedule=None):
    block(CONTAINER, deferrable=False)

with DAG("container_retried", schedule=None):
    block(CONTAINER, deferrable=False, retries=1)

with DAG("cloud_run", schedule=None):
    block(CLOUD_RUN)

with DAG("sweep", schedule=None):
    # Sweeps as if it were almost ten minutes later: only the endpoints of `garden_expiring` have expired then.
    SweepEndpointsOperator(task_id="sweep", locations=[LOCATION], older_than_seconds=5.0 - EXPIRES_SECONDS)
