"""A Dag whose tasks emit OpenLineage events, and one that their asset starts."""

from __future__ import annotations

import os

from airflow.sdk import DAG, Asset, task

from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

try:
    from airflow.providers.openlineage.utils.selective_enable import enable_lineage
except ImportError:  # without the extra, nothing is emitted
    enable_lineage = list

DATA = os.environ.get("LLMBEAM_DATA", "/tmp/llmbeam")
MOODS = Asset("moods-of-reviews")
JOB = {
    "source": {"uri": "gs://rows/lineage/in.jsonl", "key": ["id"]},
    "prompt": "What is the mood of {{ row.text }}?",
    "model": {"type": "gemini", "project": "llmbeam-sandbox"},
}

with DAG("moods", schedule=None) as moods:
    on_worker = RunInferenceOperator(task_id="on_worker", sink=f"{DATA}/moods", **JOB)
    on_dataflow = RunInferenceOperator(
        task_id="on_dataflow",
        sink="gs://rows/lineage/out",
        runner={"type": "dataflow", "location": "europe-west1", "max_workers": 1},
        outlets=[MOODS],
        **JOB,
    )
    fails = RunInferenceOperator(
        task_id="fails",
        sink="gs://rows/lineage/none",
        retries=0,
        trigger_rule="all_done",
        **JOB | {"source": {"uri": "gs://rows/lineage/none.jsonl", "key": ["id"]}},
    )
    on_worker >> on_dataflow >> fails
    enable_lineage(moods)

with DAG("after_moods", schedule=[MOODS]):

    @task
    def read(triggering_asset_events=None):
        """Returns what the event says about the answers."""
        (event,) = triggering_asset_events[MOODS]
        return event.extra

    read()
