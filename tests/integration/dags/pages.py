"""A Dag whose runs have pages in Airflow; the tests make most of them by hand."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

from airflow_provider_llmbeam.operators.compare_inference import CompareInferenceOperator
from airflow_provider_llmbeam.operators.endpoint import TeardownEndpointOperator
from airflow_provider_llmbeam.operators.estimate import EstimateInferenceOperator
from airflow_provider_llmbeam.operators.evaluate_inference import EvaluateInferenceOperator
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator
from airflow_provider_llmbeam.operators.stream_inference import StreamInferenceOperator

CASE = "gs://rows/{{ dag_run.conf['case'] }}"

JOB = {
    "source": {"uri": f"{CASE}/in.jsonl", "key": ["id"]},
    "prompt": {"template": "Say {{ row.text }}"},
    "model": {"type": "gemini", "name": "gemini-2.5-flash"},
    "sink": {"uri": f"{CASE}/out"},
}

with DAG("pages", schedule=None):
    EmptyOperator(task_id="before") >> RunInferenceOperator(task_id="ask", **JOB)

with DAG("measured_pages", schedule="@daily", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False):
    for name in ("ask", "again"):
        RunInferenceOperator(task_id=name, **JOB | {"sink": {"uri": f"{CASE}/{name}"}})
    EstimateInferenceOperator(task_id="estimate", **JOB)
    EvaluateInferenceOperator(
        task_id="evaluate", golden={"uri": f"{CASE}/golden.jsonl", "key": "id"}, metrics={"answer": "exact"}, **JOB
    )
    endpoint = {
        "type": "vertex",
        "model": "google/gemma3@gemma-3-4b-it",
        "accept_eula": True,
        "locations": ["us-central1"],
    }
    TeardownEndpointOperator(task_id="teardown", name="gpu", endpoint=endpoint)
    CompareInferenceOperator(task_id="compare", other={"model": "gemini-2.5-pro"}, **JOB)
    queue = {"type": "kafka", "bootstrap_servers": "127.0.0.1:1"}
    topics = {"source": {**queue, "topic": "questions"}, "sink": {**queue, "topic": "answers"}}
    StreamInferenceOperator(task_id="stream", state_uri=CASE, **JOB | topics)
