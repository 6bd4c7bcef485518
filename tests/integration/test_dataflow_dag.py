"""`dags/reviews_on_dataflow.py`, the very same file, on the worker and on the sandbox's Dataflow."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag

from airflow_provider_llmbeam.sandbox import Sandbox

DAG_FILE = Path(__file__).resolve().parents[2] / "dags" / "reviews_on_dataflow.py"
DAY = datetime(2026, 11, 19, tzinfo=UTC)
ROWS = 60
#: Of a row: how it came about, and not what it says.
VARYING = ("latency_seconds",)
DATAFLOW = {"type": "dataflow", "location": "europe-west1", "poll_interval_seconds": 10}


@pytest.fixture
def sandbox():
    with Sandbox(buckets=("laptop", "deferred", "waiting"), dataflow_workers=2) as running:
        yield running


@pytest.fixture
def dag_of(monkeypatch):
    """Loads the file with settings from the environment."""

    def load(**settings):
        for name, value in settings.items():
            monkeypatch.setenv(f"LLMBEAM_{name}", value)
        bag = DagBag(str(DAG_FILE))
        assert not bag.import_errors
        return bag.dags["reviews_on_dataflow"]

    return load


# Airflow warns when it meets a second version of a Dag that was deferred in `dag.test`.
@pytest.mark.filterwarnings("ignore:Multiple rows returned:sqlalchemy.exc.SAWarning")
@pytest.mark.timeout(300)
def test_the_same_file_gives_the_same_bytes_on_a_laptop_and_on_dataflow(run_dag, google, sandbox, dag_of):
    from google.cloud import storage

    client, found = storage.Client(), {}
    reviews = [{"review_id": number, "text": f"Review {number}: it is fine."} for number in range(ROWS)]
    for bucket, runner in (("laptop", {"type": "direct"}), ("deferred", DATAFLOW), ("waiting", DATAFLOW)):
        text = "".join(json.dumps(row) + "\n" for row in reviews)
        client.bucket(bucket).blob("reviews/2026-11-19.jsonl").upload_from_string(text)
        dag = dag_of(PROJECT=google.project, BUCKET=bucket, RUNNER=json.dumps(runner))
        dag.get_task("judge").deferrable = bucket == "deferred"
        _, states = run_dag(dag, logical_date=DAY)
        assert states == {"judge": "success"}, bucket
        answers = client.bucket(bucket).blob("moods/day=2026-11-19/answers-00000-of-00001.jsonl")
        found[bucket] = answers.download_as_bytes()
    assert len(sandbox.dataflow.jobs) == 2
    assert sandbox.stats()["billed_answers"] == 3 * ROWS
    laptop, deferred, waiting = ([*map(content, sorted_by_key(each))] for each in found.values())
    assert laptop == deferred == waiting
    assert len(laptop) == ROWS


def test_the_file_parses_with_nothing_set(monkeypatch, dag_of):
    for name in [
        name for name in os.environ if name.startswith("LLMBEAM_") and name != "LLMBEAM_TESTS_ON_LOOPBACK"
    ]:
        monkeypatch.delenv(name)
    assert dag_of().get_task("judge").runner == {"type": "dataflow", "location": "europe-west1"}


def sorted_by_key(answers: bytes) -> list[bytes]:
    return sorted(answers.splitlines(), key=lambda line: json.loads(line)["review_id"])


def content(line: bytes) -> bytes:
    """The bytes of a row, without what varies."""
    row = {name: value for name, value in json.loads(line).items() if name not in VARYING}
    return json.dumps(row, ensure_ascii=False).encode()
