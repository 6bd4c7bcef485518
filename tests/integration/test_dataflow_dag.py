"""`dags/reviews_on_dataflow.py`, one file on a real Airflow: on the worker, and on the sandbox's Dataflow."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag
from local_airflow import local_airflow

from airflow_provider_llmbeam.sandbox import DataflowSettings, Sandbox

DAGS = Path(__file__).resolve().parents[2] / "dags"
DAG_ID = "reviews_on_dataflow"
ROWS = 60
#: Of a row: how it came about, and not what it says.
VARYING = ("latency_seconds",)
DATAFLOW = {"type": "dataflow", "location": "europe-west1", "poll_interval_seconds": 10}
WAITS = "def task_policy(task):\n    task.deferrable = False\n"


@pytest.fixture
def sandbox():
    with Sandbox(buckets=("laptop", "deferred", "waiting"), dataflow=DataflowSettings(workers=2)) as running:
        yield running


@pytest.mark.timeout(600)
def test_the_same_file_gives_the_same_bytes_on_a_laptop_and_on_dataflow(google, sandbox, tmp_path):
    from google.cloud import storage

    client, found, tried = storage.Client(), {}, {}
    reviews = [{"review_id": number, "text": f"Review {number}: it is fine."} for number in range(ROWS)]
    text = "".join(json.dumps(row) + "\n" for row in reviews)
    for bucket, runner in (("laptop", {"type": "direct"}), ("deferred", DATAFLOW), ("waiting", DATAFLOW)):
        for day in (datetime.now(UTC), datetime.now(UTC) + timedelta(days=1)):
            client.bucket(bucket).blob(f"reviews/{day:%Y-%m-%d}.jsonl").upload_from_string(text)
        home = tmp_path / bucket
        if bucket == "waiting":  # a cluster's policy, so that the file stays as it is
            (home / "config").mkdir(parents=True)
            (home / "config" / "airflow_local_settings.py").write_text(WAITS)
        settings = {"PROJECT": google.project, "BUCKET": bucket, "RUNNER": json.dumps(runner)}
        environment = {f"LLMBEAM_{name}": value for name, value in settings.items()}
        with local_airflow(home, DAGS, environment) as airflow:
            run_id = airflow.trigger(DAG_ID)
            assert airflow.wait(DAG_ID, run_id, 180) == "success", airflow.log_lines(DAG_ID, run_id, "judge")
            tried[bucket] = "\n".join(airflow.log_lines(DAG_ID, run_id, "judge"))
        (answers,) = client.list_blobs(bucket, match_glob="moods/*/answers-*.jsonl")
        found[bucket] = answers.download_as_bytes()
    assert len(sandbox.dataflow.jobs) == 2
    assert sandbox.stats()["billed_answers"] == 3 * ROWS
    assert {bucket: "Pausing task as DEFERRED" in log for bucket, log in tried.items()} == {
        "laptop": False,
        "deferred": True,
        "waiting": False,
    }
    laptop, deferred, waiting = ([*map(content, sorted_by_key(each))] for each in found.values())
    assert laptop == deferred == waiting
    assert len(laptop) == ROWS


def test_the_file_parses_with_nothing_set(monkeypatch):
    for name in [
        name for name in os.environ if name.startswith("LLMBEAM_") and name != "LLMBEAM_TESTS_ON_LOOPBACK"
    ]:
        monkeypatch.delenv(name)
    bag = DagBag(str(DAGS / f"{DAG_ID}.py"))
    assert not bag.import_errors
    assert bag.dags[DAG_ID].get_task("judge").runner == {"type": "dataflow", "location": "europe-west1"}


def sorted_by_key(answers: bytes) -> list[bytes]:
    return sorted(answers.splitlines(), key=lambda line: json.loads(line)["review_id"])


def content(line: bytes) -> bytes:
    """The bytes of a row, without what varies."""
    row = {name: value for name, value in json.loads(line).items() if name not in VARYING}
    return json.dumps(row, ensure_ascii=False).encode()
