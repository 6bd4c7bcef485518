"""Machines that share a quota and cannot talk to each other, each a harness of one job on Dataflow."""

from __future__ import annotations

import json

import pytest
from airflow.sdk import DAG

from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator
from airflow_provider_llmbeam.sandbox import Latency, Quota, Sandbox

WORKERS, REQUESTS_PER_MINUTE, ROWS = 4, 600, 900


@pytest.fixture
def sandbox():
    with Sandbox(
        buckets=("rows",),
        quota=Quota(requests_per_minute=REQUESTS_PER_MINUTE),
        latency=Latency(mean_seconds=0.5, sigma=0.3),
        dataflow_workers=WORKERS,
    ) as running:
        yield running


@pytest.mark.timeout(300)
def test_four_machines_use_up_a_quota_without_many_429s(run_dag, google, sandbox):
    from google.cloud import storage

    rows = [{"id": number, "text": f"row {number}"} for number in range(ROWS)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    storage.Client().bucket("rows").blob("in.jsonl").upload_from_string(text)
    with DAG("four_machines", schedule=None) as dag:
        RunInferenceOperator(
            task_id="ask",
            source={"uri": "gs://rows/in.jsonl", "key": ["id"]},
            prompt={"template": "Say {{ row.text }}"},
            model={"type": "gemini", "project": google.project},
            sink={"uri": "gs://rows/out"},
            limits={"requests_per_minute": REQUESTS_PER_MINUTE},
            runner={
                "type": "dataflow",
                "location": "europe-west1",
                "max_workers": WORKERS,
                "poll_interval_seconds": 10,
            },
            deferrable=False,
        )
    dag_run, states = run_dag(dag)
    assert states == {"ask": "success"}
    asked = [one for one in sandbox.requests if one.method == "gemini.generateContent"]
    answered, arrivals = sum(one.is_billed for one in asked), [one.received_at for one in asked]
    # As in `bench.measure`: what the bucket holds at first is nobody's merit.
    seconds = max(arrivals) - min(arrivals)
    used = min(1.0, answered / (seconds * REQUESTS_PER_MINUTE / 60))
    rejected = sum(one.http_status == 429 for one in asked) / len(asked)
    report = dag_run.get_task_instance("ask").xcom_pull(task_ids="ask")
    print(f"{used:.1%} of the quota in {seconds:.1f} s, {rejected:.2%} 429s; report: {report['requests']}")
    for status in (200, 429):
        moments = [one.received_at - min(arrivals) for one in asked if one.http_status == status]
        print(
            status, "per 10 s:", [sum(begin <= at < begin + 10 for at in moments) for begin in range(0, 120, 10)]
        )
    assert answered == ROWS
    assert used >= 0.9
    assert rejected <= 0.03
