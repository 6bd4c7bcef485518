"""The Dag of `dags/` that labels the messages of a topic in batches."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from tests.kafka import kafka_cluster

pytestmark = [pytest.mark.full, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]


def test_each_run_labels_what_has_come_since_the_last_one(run_dag, connection, tmp_path, monkeypatch, sandbox):
    monkeypatch.setenv("LLMBEAM_DATA", str(tmp_path))
    with kafka_cluster() as cluster:
        extra = {"bootstrap.servers": cluster.servers, "group.id": "airflow", "auto.offset.reset": "latest"}
        value = json.dumps({"conn_type": "kafka", "extra": extra})
        monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", value)
        cluster.create("ticket-labels")
        dag = runpy.run_path(str(ROOT / "dags" / "queue_batches.py"))["dag"]
        cluster.send("tickets", {"text": "Where is my invoice?"}, {"text": "It does not start"}, key="t1")
        _, states = run_dag(dag)
        assert states == {"label": "success"}
        assert len(cluster.messages("ticket-labels")) == 2
        cluster.send("tickets", {"text": "Hello"}, key="t2")
        _, states = run_dag(dag)
        assert states == {"label": "success"}
        labels = [json.loads(message.value()) for message in cluster.messages("ticket-labels")]
    assert sorted(row["kafka_key"] for row in labels) == ["t1", "t1", "t2"]
    assert all("team" in row["answer"] for row in labels)
    assert len(sandbox.requests) == 3
