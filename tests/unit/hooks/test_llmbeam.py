from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_llmbeam.google_cloud.credentials import uses_google
from airflow_provider_llmbeam.hooks.llmbeam import LLMBeamHook
from airflow_provider_llmbeam.spec import JobSpec

ENDPOINT = {"type": "vertex_endpoint", "name": "g", "endpoint": "projects/p/locations/us-central1/endpoints/1"}
CLOUD_RUN = {
    "type": "openai",
    "name": "g",
    "base_url": "https://a.run.app/v1",
    "id_token_audience": "https://a.run.app",
}
SERVER = {"type": "openai", "name": "g", "base_url": "http://127.0.0.1:9/v1"}


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> LLMBeamHook:
    connection = {"conn_type": "llmbeam", "host": "http://other", "password": "the-key"}
    monkeypatch.setenv("AIRFLOW_CONN_LLMBEAM_DEFAULT", json.dumps(connection))
    return LLMBeamHook()


@pytest.mark.parametrize("model", [ENDPOINT, CLOUD_RUN], ids=["vertex", "cloud run"])
def test_an_endpoint_of_google_cloud_gets_neither_key_nor_address_of_the_connection(
    hook: LLMBeamHook, model: dict[str, Any]
) -> None:
    assert hook.complete_model(model) == (model, {})


@pytest.mark.parametrize(
    ("model", "environment"),
    [
        (SERVER, {"OPENAI_API_KEY": "the-key"}),
        (SERVER | {"api_key_env": "MINE"}, {"MINE": "the-key"}),
        (SERVER | {"id_token_audience": None}, {"OPENAI_API_KEY": "the-key"}),
    ],
)
def test_a_server_that_takes_a_key_gets_that_of_the_connection(
    hook: LLMBeamHook, model: dict[str, Any], environment: dict[str, str]
) -> None:
    assert hook.complete_model(model) == (model, environment)


@pytest.mark.parametrize(("model", "expected"), [(ENDPOINT, True), (CLOUD_RUN, True), (SERVER, False)])
def test_requests_to_google_cloud_endpoints_use_the_credentials_of_the_account(
    model: dict[str, Any], expected: bool
) -> None:
    job = {
        "name": "nightly",
        "source": {"uri": "in/*.jsonl", "key": ["id"]},
        "prompt": {"template": "{{ row.text }}"},
        "model": model,
        "sink": {"uri": "out/"},
    }
    assert uses_google(JobSpec.parse(job)) == expected
