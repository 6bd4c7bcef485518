"""The causes of errors of a client of Kafka."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.pipeline.queues.kafka_client import Client, cause_of
from airflow_provider_llmbeam.spec.source import KafkaSource

NOW = 1000.0
LATE, DOWN = KafkaError(KafkaError._TIMED_OUT), KafkaError(KafkaError._TRANSPORT)
PASSWORD, RIGHT = KafkaError(KafkaError._AUTHENTICATION), KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)


@pytest.mark.parametrize(
    ("error", "causes", "cause"),
    [
        (LATE, [], LATE),
        (LATE, [(NOW - 2, DOWN), (NOW - 1, LATE)], LATE),
        (LATE, [(NOW - 40, PASSWORD), (NOW - 1, DOWN)], PASSWORD),
        (LATE, [(NOW - 3600, PASSWORD), (NOW - 1, DOWN)], DOWN),
        (LATE, [(NOW - 3600, PASSWORD)], LATE),
        (RIGHT, [(NOW - 1, DOWN)], RIGHT),
        (RIGHT, [(NOW - 1, PASSWORD)], PASSWORD),
    ],
)
def test_the_cause_of_an_error_is_the_newest_permanent_one_of_the_last_minute_or_else_the_newest(
    error, causes, cause
):
    assert cause_of(error, causes, NOW) is cause


def test_a_client_keeps_the_last_errors_alone():
    client = Client(KafkaSource(type="kafka", topic=("q",), bootstrap_servers="h:1"), "source")
    note = client.settings()["error_cb"]
    for number in range(1000):
        note(KafkaError(KafkaError._TRANSPORT, f"broker {number}"))
    assert len(client.causes) < 10
    found = client.error(LATE, "reading")
    assert isinstance(found, JobFailedError)
    assert "broker 999" in str(found)


def test_producers_have_none_of_the_settings_of_a_consumer(monkeypatch):
    monkeypatch.setenv("OF_KAFKA", '{"group.id": "g", "auto.offset.reset": "latest", "security.protocol": "SSL"}')
    client = Client(
        KafkaSource(type="kafka", topic=("q",), bootstrap_servers="h:1", config_env="OF_KAFKA"), "source"
    )
    assert client.settings().keys() - client.producer_settings().keys() == {"group.id", "auto.offset.reset"}
