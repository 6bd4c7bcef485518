"""`StreamInferenceOperator` between the topics of a real broker."""

from __future__ import annotations

import base64
import gzip
import json
import runpy
import threading
import time
from datetime import timedelta
from itertools import product
from pathlib import Path

import pytest
from airflow.sdk import DAG, BaseNotifier
from kafka_broker import create_topics
from waiting import until

from airflow_provider_llmbeam.operators.stream_inference import StreamInferenceOperator
from tests.kafka import Cluster, kafka_broker

pytestmark = [pytest.mark.full, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
KINDS = {"latency", "lag", "failed_rows", "cost"}


class Recording(BaseNotifier):
    """Keeps the alerts that it is called with."""

    def __init__(self, alerts):
        super().__init__()
        self.alerts = alerts

    def notify(self, context):
        alert = context["llmbeam_alert"]
        self.alerts.append((alert["kind"], alert["is_resolved"]))


@pytest.fixture
def cluster(connection, sandbox, tmp_path_factory, monkeypatch):
    """A broker with two topics, which `kafka_default` names."""
    with kafka_broker(tmp_path_factory.mktemp("broker")) as broker:
        extra = {"bootstrap.servers": broker.servers}
        monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))
        create_topics(broker.servers, 4, "questions", "answers")
        yield Cluster(broker.servers)


def stream_dag(tmp_path, stream=None, **given):
    """A Dag with one stream, which ends when nothing is left."""
    with DAG("streamed", schedule=None) as dag:
        StreamInferenceOperator(
            task_id="answer",
            source={"type": "kafka", "topic": "questions", "conn_id": "kafka_default"},
            prompt="{{ row.text }}",
            model="gemini-2.5-flash",
            sink={"type": "kafka", "topic": "answers", "conn_id": "kafka_default"},
            state_uri=str(tmp_path / "state"),
            stream={"create_topics": True, **(stream or {})},
            drain=True,
            **given,
        )
    return dag


def test_a_task_answers_each_message_once_and_ends_when_none_is_left(run_dag, cluster, sandbox, tmp_path):
    cluster.send("questions", *({"text": f"Question {number}"} for number in range(20)))
    dag_run, states = run_dag(stream_dag(tmp_path, run_for=timedelta(minutes=4)))
    assert states == {"answer": "success"}
    found = dag_run.get_task_instance("answer").xcom_pull(task_ids="answer")
    answers = [json.loads(message.value())["answer"] for message in cluster.messages("answers")]
    assert (found["committed"], found["lag"]) == (20, 0)
    assert "20 in 1 min" in page_of(dag_run)
    assert len(answers) == len(set(answers)) == 20
    assert set(sandbox.requests.paid().values()) == {1}


def test_the_notifiers_of_a_task_get_each_alert_once_and_once_that_it_is_over(run_dag, cluster, sandbox, tmp_path):
    alerts = []
    rules = {"latency_p95_ms": 1, "lag": 1, "failed_row_ratio": 0.0, "cost_usd_per_hour": 1e-9}
    held, last = (sandbox.faults.hold("gemini.generateContent", text) for text in ("held", "last"))
    cluster.send("questions", *({"text": text} for text in ("first", "held", "last", "held, too")))
    dag = stream_dag(
        tmp_path,
        stream={"window_seconds": 1, "report_seconds": 0.5},
        alerts={**rules, "for_seconds": 3},
        notifiers=Recording(alerts),
    )

    def go_through_trouble():
        until(lambda: held.waiting, "the worker has begun")
        number = 0
        while len(alerts) < len(rules):
            number += 1
            cluster.send("questions", {"text": f"Question {number}"}, key="x")
            cluster.send("questions", {"no text": number})
            time.sleep(0.2)
        held.release()
        until(lambda: len(alerts) == 2 * len(rules) - 1, lambda: f"the alerts are over: {alerts}")
        time.sleep(4)  # none is repeated
        last.release()  # and nothing is left

    thread = threading.Thread(target=go_through_trouble)
    thread.start()
    dag_run, states = run_dag(dag)
    thread.join()
    assert states == {"answer": "success"}
    assert {*alerts} == {*product(KINDS, [False, True])} - {("cost", True)}  # the last hour stays dear
    assert len({*alerts}) == len(alerts)
    html = page_of(dag_run)
    assert "Alert: cost" in html
    assert "Alert: lag" not in html


def test_the_dag_of_the_repository_answers_and_ends_after_its_time(
    run_dag, cluster, sandbox, tmp_path, monkeypatch
):
    monkeypatch.setenv("LLMBEAM_DATA", str(tmp_path))
    cluster.send("questions", *({"text": f"Question {number}"} for number in range(20)))
    dag = runpy.run_path(str(ROOT / "dags" / "stream_answers.py"))["dag"]
    dag.get_task("answer").run_for = timedelta(seconds=20)
    _, states = run_dag(dag)
    assert states == {"answer": "success"}
    assert len(cluster.messages("answers")) == 20


def page_of(dag_run):
    page = dag_run.get_task_instance("answer").xcom_pull(task_ids="answer", key="llmbeam_page")
    return gzip.decompress(base64.b64decode(page["html_gzip"])).decode()
