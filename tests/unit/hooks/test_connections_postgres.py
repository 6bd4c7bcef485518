"""The password of a `postgres` connection."""

from __future__ import annotations

import json

from airflow_provider_llmbeam.hooks.connections import sink_environment
from airflow_provider_llmbeam.spec import PostgresSink


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
