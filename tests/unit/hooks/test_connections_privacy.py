from __future__ import annotations

import json

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.hooks.connections import privacy_environment
from airflow_provider_llmbeam.spec.safety import Privacy

SECRET = "the secret of a connection"


def test_the_password_of_the_connection_is_the_secret_and_airflow_masks_it(monkeypatch):
    masked = []
    monkeypatch.setattr("airflow_provider_llmbeam.hooks.connections.mask_secret", masked.append)
    monkeypatch.setenv("AIRFLOW_CONN_MASKING", json.dumps({"conn_type": "generic", "password": SECRET}))
    assert privacy_environment(Privacy(key_conn_id="masking", key_env="OWN")) == {"OWN": SECRET}
    assert masked == [SECRET]


def test_without_a_connection_the_worker_has_the_variable():
    assert privacy_environment(None) == privacy_environment(Privacy()) == {}


def test_a_connection_without_a_password_is_refused(monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_MASKING", json.dumps({"conn_type": "generic"}))
    with pytest.raises(JobSpecError, match=r"'masking' has no password. Expected the secret"):
        privacy_environment(Privacy(key_conn_id="masking"))


def test_a_connection_that_is_not_there_is_refused():
    with pytest.raises(JobSpecError, match="there is no connection 'masking'"):
        privacy_environment(Privacy(key_conn_id="masking"))
