"""The password of a `postgres` connection."""

from __future__ import annotations

import json

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.hooks.connections import connection_environment, sink_environment
from airflow_provider_llmbeam.spec import JobSpec, PostgresSink


def test_airflow_masks_the_password_in_each_of_its_forms(monkeypatch):
    masked = []
    monkeypatch.setattr("airflow_provider_llmbeam.hooks.connections.mask_secret", masked.append)
    value = {
        "conn_type": "postgres",
        "host": "h",
        "login": "me",
        "password": "p@ss/word",
        "extra": {"sslpassword": "another-one"},
    }
    monkeypatch.setenv("AIRFLOW_CONN_DB", json.dumps(value))
    environment = sink_environment(PostgresSink(type="postgres", table="t", conn_id="db"))
    assert {"p@ss/word", "p%40ss%2Fword", "another-one", *environment.values()} <= set(map(str, masked[:-1]))
    assert masked[-1] == value["extra"], "Airflow masks the fields whose names say that they are secret"


def test_each_of_several_sinks_has_its_connection(monkeypatch):
    for name in ("one", "two"):
        value = {"conn_type": "postgres", "host": name, "login": "me", "password": "p"}
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(value))
    monkeypatch.setenv("AIRFLOW_CONN_QUEUE", json.dumps({"conn_type": "kafka", "extra": {"client.id": "a"}}))
    store = {"type": "postgres", "table": "answers"}

    def environment(**second):
        spec = {
            "name": "stream",
            "source": {"type": "kafka", "topic": "q", "bootstrap_servers": "h:1"},
            "prompt": "{{ row.text }}",
            "model": {"type": "echo"},
            "sink": {**store, "conn_id": "one"},
            "sinks": [{"type": "kafka", "topic": "a", "conn_id": "queue"}, {**store, **second}],
            "state_uri": "state",
        }
        return connection_environment(JobSpec.parse(spec))

    found = environment(conn_id="two", dsn_env="SECOND")
    assert found["LLMBEAM_POSTGRES_DSN"].endswith("@one/")
    assert found["SECOND"].endswith("@two/")
    assert json.loads(found["LLMBEAM_KAFKA_SINK_CONFIG"]) == {"client.id": "a"}
    assert environment(conn_id="one").keys() == {"LLMBEAM_POSTGRES_DSN", "LLMBEAM_KAFKA_SINK_CONFIG"}
    with pytest.raises(JobSpecError, match=r"`sinks.1.dsn_env`: another sink has another connection"):
        environment(conn_id="two")
    with pytest.raises(JobSpecError, match=r"`sinks.1.conn_id`: there is no connection 'three'"):
        environment(conn_id="three")
