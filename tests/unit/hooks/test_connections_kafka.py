"""The settings of a `kafka` connection."""

from __future__ import annotations

import json

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.hooks.connections import kafka_environment
from airflow_provider_llmbeam.redaction import redact, secrets_of
from airflow_provider_llmbeam.spec import KafkaSink, KafkaSource

SETTINGS = {"bootstrap.servers": "broker:9092", "sasl.username": "me", "sasl.password": "pass-word-1"}
SOURCE = KafkaSource(type="kafka", topic=("t",), conn_id="queue")


@pytest.fixture
def connection(monkeypatch):
    """Returns a function that sets the connection."""

    def connected(conn_type="kafka", **extra):
        value = {"conn_type": conn_type, "extra": SETTINGS | extra}
        monkeypatch.setenv("AIRFLOW_CONN_QUEUE", json.dumps(value))

    return connected


def test_the_settings_are_a_variable_of_the_job_and_airflow_masks_the_password(connection, monkeypatch):
    masked = []
    monkeypatch.setattr("airflow_provider_llmbeam.hooks.connections.mask_secret", masked.append)
    connection()
    environment = kafka_environment(source=SOURCE, sink=None)
    assert json.loads(environment["LLMBEAM_KAFKA_SOURCE_CONFIG"]) == SETTINGS
    assert "pass-word-1" in masked
    assert SETTINGS in masked


def test_a_source_without_a_connection_has_no_variable():
    assert kafka_environment(source=KafkaSource(type="kafka", topic=("t",))) == {}


@pytest.mark.parametrize(
    ("conn_type", "extra", "problem"),
    [
        ("http", {}, "is of type 'http'. Expected 'kafka'"),
        ("kafka", {"oauth_cb": "module.function"}, "has 'oauth_cb', a function"),
    ],
)
def test_a_connection_that_cannot_be_used_is_refused(connection, conn_type, extra, problem):
    connection(conn_type, **extra)
    with pytest.raises(JobSpecError, match=problem):
        kafka_environment(source=SOURCE)


def test_source_and_sink_with_different_connections_need_a_variable_each(connection, monkeypatch):
    connection()
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps({"conn_type": "kafka", "extra": {"client.id": "b"}}))
    sink = KafkaSink(type="kafka", topic="a", conn_id="other")
    assert len(kafka_environment(source=SOURCE, sink=sink)) == 2
    sink = sink.model_copy(update={"config_env": SOURCE.config_env})
    with pytest.raises(JobSpecError, match="both name the variable 'LLMBEAM_KAFKA_SOURCE_CONFIG'"):
        kafka_environment(source=SOURCE, sink=sink)


def test_a_connection_that_does_not_exist_is_refused():
    with pytest.raises(JobSpecError, match=r"`source\.conn_id`: there is no connection 'queue'"):
        kafka_environment(source=SOURCE)


def test_the_password_within_the_settings_is_removed_from_texts():
    secrets = secrets_of({"LLMBEAM_KAFKA_SOURCE_CONFIG": json.dumps(SETTINGS), "OTHER": "{not json"})
    assert redact("failed with pass-word-1", secrets) == "failed with ***"
