"""One task per mistake of `tests/mistakes`, as `conf` of the run describes them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

with DAG("mistakes", schedule=None, default_args={"retries": 2, "retry_delay": timedelta(seconds=1)}):

    @task
    def specs(**context: Any) -> list[dict[str, Any]]:
        return context["dag_run"].conf["specs"]

    RunInferenceOperator.partial(task_id="mistake").expand_kwargs(specs())
