"""`StreamInferenceOperator` between the topics of a real broker."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from airflow.sdk import DAG
from kafka_broker import create_topics

from airflow_provider_llmbeam.operators.stream_inference import StreamInferenceOperator
from tests.kafka import Cluster, kafka_broker

pytestmark = [pytest.mark.full, pytest.mark.slow]


def test_a_task_answers_each_message_once_and_ends_when_none_is_left(
    run_dag, connection, sandbox, tmp_path, tmp_path_factory, monkeypatch
):
    with kafka_broker(tmp_path_factory.mktemp("broker")) as broker:
        extra = {"bootstrap.servers": broker.servers}
        monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))
        create_topics(broker.servers, 4, "questions", "answers")
        cluster = Cluster(broker.servers)
        cluster.send("questions", *({"text": f"Question {number}"} for number in range(20)))
        with DAG("streamed", schedule=None) as dag:
            StreamInferenceOperator(
                task_id="answer",
                source={"type": "kafka", "topic": "questions", "conn_id": "kafka_default"},
                prompt="{{ row.text }}",
                model="gemini-2.5-flash",
                sink={"type": "kafka", "topic": "answers", "conn_id": "kafka_default"},
                state_uri=str(tmp_path / "state"),
                stream={"create_topics": True},
                run_for=timedelta(minutes=4),
                drain=True,
            )
        dag_run, states = run_dag(dag)
        assert states == {"answer": "success"}
        found = dag_run.get_task_instance("answer").xcom_pull(task_ids="answer")
        answers = [json.loads(message.value())["answer"] for message in cluster.messages("answers")]
    assert (found["committed"], found["lag"]) == (20, 0)
    assert len(answers) == len(set(answers)) == 20
    assert set(sandbox.requests.paid().values()) == {1}
