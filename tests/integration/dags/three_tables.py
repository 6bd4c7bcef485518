"""Dag with three tasks that run at the same time, each with its own table and many retries."""

from __future__ import annotations

import os
from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

FOLDER = os.environ.get("LLMBEAM_DATA", "/tmp/llmbeam") + "/{{ dag_run.conf['folder'] }}"

with DAG("three_tables", schedule=None):
    RunInferenceOperator.partial(
        task_id="answer",
        prompt={"template": "Say it: {{ row.text }}"},
        model={"type": "gemini"},
        limits={"max_in_flight": 8},
        retries=50,
        retry_delay=timedelta(seconds=1),
    ).expand_kwargs(
        [
            {
                "source": {"uri": f"{FOLDER}/in/{table}.jsonl", "key": ["id"]},
                "sink": {"uri": f"{FOLDER}/out/{table}"},
            }
            for table in range(3)
        ]
    )
