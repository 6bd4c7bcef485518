"""Machines that share a quota without shared state: the harnesses of one job on Dataflow."""

from __future__ import annotations

import json

import pytest
from airflow.sdk import DAG
from llmbeam_sandbox import DataflowSettings, Latency, ModelSettings, Quota, Sandbox

from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

pytestmark = [pytest.mark.full, pytest.mark.promise(4), pytest.mark.slow]

# Measured with 900 rows: 100 % of the quota, 0.8 % 429s. The bounds allow for a start and a machine under load.
# `python -m bench.fleet` measures the law for many machines and hours.
WORKERS, REQUESTS_PER_MINUTE, ROWS = 4, 900, 300


@pytest.fixture
def sandbox():
    with Sandbox(
        buckets=("rows",),
        models=ModelSettings(
            quota=Quota(requests_per_minute=REQUESTS_PER_MINUTE), latency=Latency(mean_seconds=0.5, sigma=0.3)
        ),
        dataflow=DataflowSettings(workers=WORKERS),
    ) as running:
        yield running


@pytest.mark.timeout(300)
def test_four_machines_use_the_whole_quota_with_few_429s(run_dag, google, sandbox, quick_polls):
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
            runner={"type": "dataflow", "location": "europe-west1", "max_workers": WORKERS},
            deferrable=False,
        )
    _, states = run_dag(dag)
    assert states == {"ask": "success"}
    sent = [one for one in sandbox.requests if one.method == "gemini.generateContent"]
    moments = sorted(one.received_at for one in sent if one.is_billed)
    rejected = sum(one.http_status == 429 for one in sent) / len(sent)
    print(f"{used(moments):.1%} of the quota, {rejected:.2%} 429s")
    assert len(moments) == ROWS
    assert used(moments) >= 0.8
    assert rejected <= 0.03


def used(moments: list[float]) -> float:
    """Returns the used ratio of the quota, without the initial content of the bucket, as in `bench.measure`."""
    return min(1.0, len(moments) / ((moments[-1] - moments[0]) * REQUESTS_PER_MINUTE / 60))
