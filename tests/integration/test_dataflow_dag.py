"""`dags/reviews_on_dataflow.py` on a real Airflow: on the worker, and deferred on the Dataflow of the sandbox."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from llmbeam_sandbox import prompt_sha256
from waiting import scaled

from tests.integration.cases import STEP_SECONDS

pytestmark = [
    pytest.mark.promise(1),
    pytest.mark.promise(2),
    pytest.mark.xdist_group("airflow-services"),
    pytest.mark.timeout(scaled(600)),
]
DAGS = Path(__file__).resolve().parents[2] / "dags"
DAG_ID = "reviews_on_dataflow"
ROWS = 60
#: Columns that vary between runs without a change of the answer.
VARYING = ("llmbeam_latency_seconds",)
#: Id of the Dag that `dags/reviews_in_two_ways.py` creates for each bucket.
DAG_IDS = {bucket: f"reviews_{bucket}" for bucket in ("laptop", "deferred")}


@pytest.fixture
def sandbox(cloud):
    return cloud.sandbox


def test_the_same_file_gives_the_same_bytes_on_a_laptop_and_on_dataflow(google, cloud, sandbox):
    from google.cloud import storage

    client, found, tried = storage.Client(), {}, {}
    reviews = [{"review_id": number, "text": f"Review {number}: it is fine."} for number in range(ROWS)]
    text = "".join(json.dumps(row) + "\n" for row in reviews)
    for bucket in DAG_IDS:
        for day in (datetime.now(UTC), datetime.now(UTC) + timedelta(days=1)):
            client.bucket(bucket).blob(f"reviews/{day:%Y-%m-%d}.jsonl").upload_from_string(text)
    airflow = cloud.airflow
    for bucket, (dag_id, run_id) in {
        bucket: (dag_id, airflow.trigger(dag_id)) for bucket, dag_id in DAG_IDS.items()
    }.items():
        assert airflow.wait(dag_id, run_id, STEP_SECONDS) == "success", airflow.log_lines(dag_id, run_id, "judge")
        tried[bucket] = "\n".join(airflow.log_lines(dag_id, run_id, "judge"))
        (answers,) = client.list_blobs(bucket, match_glob="moods/*/answers-*.jsonl")
        found[bucket] = answers.download_as_bytes()
    assert len(sandbox.dataflow.jobs) == 1
    paid = sandbox.requests.paid()
    prompts = [prompt_sha256(f"What is the mood of this review?\n\n{review['text']}") for review in reviews]
    assert [paid[prompt] for prompt in prompts] == [len(DAG_IDS)] * ROWS, tried
    assert {bucket: "Pausing task as DEFERRED" in log for bucket, log in tried.items()} == {
        "laptop": False,
        "deferred": True,
    }
    laptop, deferred = ([*map(content, sorted_by_key(each))] for each in found.values())
    assert laptop == deferred
    assert len(laptop) == ROWS


def test_the_file_parses_without_environment_variables(monkeypatch, dag_bags):
    for name in [
        name for name in os.environ if name.startswith("LLMBEAM_") and name != "LLMBEAM_TESTS_ON_LOOPBACK"
    ]:
        monkeypatch.delenv(name)
    bag = dag_bags.DagBag(str(DAGS / f"{DAG_ID}.py"))
    assert not bag.import_errors
    assert bag.dags[DAG_ID].get_task("judge").runner == {"type": "dataflow", "location": "europe-west1"}


def sorted_by_key(answers: bytes) -> list[bytes]:
    return sorted(answers.splitlines(), key=lambda line: json.loads(line)["review_id"])


def content(line: bytes) -> bytes:
    """Returns a row as bytes, without the columns that vary."""
    row = {name: value for name, value in json.loads(line).items() if name not in VARYING}
    return json.dumps(row, ensure_ascii=False).encode()
