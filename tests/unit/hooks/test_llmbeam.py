from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk import BaseHook

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.hooks.google.authentication import uses_google
from airflow_provider_llmbeam.hooks.llmbeam import LLMBeamHook, open_model
from airflow_provider_llmbeam.hooks.model_list import model_of_connection
from airflow_provider_llmbeam.providers.registry import part_of
from airflow_provider_llmbeam.spec import JobSpec, OpenAIModel
from airflow_provider_llmbeam.spec.model import Model
from tests.otlp import IS_BELOW_3_2
from tests.replying import Replying, raw

ENDPOINT = {"type": "vertex_endpoint", "name": "g", "endpoint": "projects/p/locations/us-central1/endpoints/1"}
CLOUD_RUN = {
    "type": "openai",
    "name": "g",
    "base_url": "https://a.run.app/v1",
    "id_token_audience": "https://a.run.app",
}
SERVER = {"type": "openai", "name": "g", "base_url": "http://127.0.0.1:9/v1"}
BEARER = {"Authorization": "Bearer of-the-worker"}


def url_of_list(model: Model) -> str:
    url: str = part_of(model, "probe").model_list(model).url
    return url


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> LLMBeamHook:
    connection = {"conn_type": "llmbeam", "host": "http://other", "password": "the-key"}
    for name in ("LLMBEAM_DEFAULT", "MINE"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(connection))
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
def test_a_server_that_takes_a_key_gets_that_of_a_connection_that_was_named(
    hook: LLMBeamHook, model: dict[str, Any], environment: dict[str, str]
) -> None:
    assert LLMBeamHook("mine").complete_model(model) == (model, environment)


def test_the_key_of_the_default_connection_is_sent_to_no_openai_server_but_that_of_its_host(
    hook: LLMBeamHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of-the-worker")
    own = {"type": "openai", "name": "g", "base_url": "http://other"}
    assert hook.complete_model({"type": "openai", "name": "g"}) == (own, {"OPENAI_API_KEY": "the-key"})
    assert hook.complete_model(own | {"base_url": "http://other/"})[1] == {"OPENAI_API_KEY": "the-key"}
    for address in (SERVER["base_url"], "http://other.example", "http://other/v1"):
        model, headers = open_model(own | {"base_url": address})
        assert (model, headers()) == (OpenAIModel(**own | {"base_url": address}), BEARER)
    monkeypatch.setenv(
        "AIRFLOW_CONN_LLMBEAM_DEFAULT", json.dumps({"conn_type": "llmbeam", "password": "gemini's"})
    )
    assert open_model({"type": "openai", "name": "g"})[1]() == BEARER
    assert open_model("gemini-2.5-flash")[1]() == {"x-goog-api-key": "gemini's"}


@pytest.mark.parametrize(
    ("connection", "fault"),
    [
        (
            json.dumps({"conn_type": "llmbeam", "host": "http://gpu", "port": 8000}),
            "has a port, which would be left out",
        ),
        ("llmbeam://https://:k@gpu:8000/v1", "has a port and a schema, which"),
        ("llmbeam://https://:k@api.openai.com/v1", "has a schema, which"),
        ("llmbeam://:k@gpu", "does not start with http:// or https://."),
    ],
)
def test_an_address_that_is_not_in_the_host_alone_is_refused_before_a_key_is_sent_elsewhere(
    monkeypatch: pytest.MonkeyPatch, connection: str, fault: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPLIT", connection)
    with pytest.raises(JobSpecError, match="Nothing was sent or billed") as refused:
        LLMBeamHook("split").complete_model({"type": "openai", "name": "m"})
    assert fault in str(refused.value)


@pytest.mark.parametrize("connection", ["llmbeam://:k@", "llmbeam://:k@https%3A%2F%2Fapi.openai.com%2Fv1"])
def test_a_connection_as_a_uri_has_its_key(monkeypatch: pytest.MonkeyPatch, connection: str) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_WHOLE", connection)
    _, environment = LLMBeamHook("whole").complete_model({"type": "openai", "name": "m"})
    assert environment == {"OPENAI_API_KEY": "k"}


@pytest.mark.parametrize("host", ["https://user:topsecret@host/v1", "https://host/v1?key=topsecret"])
def test_a_host_that_holds_a_secret_is_refused_and_not_repeated(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_WRONG", json.dumps({"conn_type": "llmbeam", "host": host}))
    with pytest.raises(JobSpecError, match="the host of connection 'wrong' holds a") as caught:
        LLMBeamHook("wrong").complete_model({"type": "gemini"})
    assert LLMBeamHook("wrong").test_connection() == (False, str(caught.value))
    assert "belongs in the password of the connection" in str(caught.value)
    assert "topsecret" not in str(caught.value)


def test_airflow_masks_the_key_of_the_connection(hook: LLMBeamHook, monkeypatch: pytest.MonkeyPatch) -> None:
    masked = []
    monkeypatch.setattr("airflow_provider_llmbeam.hooks.llmbeam.mask_secret", masked.append)
    hook.complete_model({"type": "openai", "name": "g"})
    assert masked == ["the-key"]


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
    job["source"] = {"type": "pubsub", "subscription": "projects/p/subscriptions/s"}
    assert uses_google(JobSpec.parse(job))


def connect(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> LLMBeamHook:
    for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AIRFLOW_CONN_LLMBEAM_DEFAULT", json.dumps({"conn_type": "llmbeam", **fields}))
    return LLMBeamHook()


def test_the_connection_test_says_whether_gemini_accepts_the_key(
    monkeypatch: pytest.MonkeyPatch, sandbox: Any
) -> None:
    address = sandbox.gemini_url
    assert connect(monkeypatch, host=address, password="the-key").test_connection() == (
        True,
        f"{address}: key accepted, 26 models. Deployment (`[llmbeam] deployment`): 'tests'.",
    )
    is_usable, message = connect(monkeypatch, host=address, password="invalid-key").test_connection()
    assert (is_usable, message) == (
        False,
        "The Gemini Developer API answered HTTP 400: API key not valid. Please pass a valid API key.",
    )
    is_usable, message = connect(monkeypatch).test_connection()
    assert not is_usable
    assert message.startswith(
        "The Gemini Developer API needs a key: found neither a password in the `llmbeam` con"
    )
    assert not sandbox.requests, "a list is no request to a model"


def test_the_connection_test_lists_the_models_of_a_server_with_the_openai_api(
    monkeypatch: pytest.MonkeyPatch, sandbox: Any
) -> None:
    address = sandbox.openai_url
    is_usable, message = connect(monkeypatch, host=address, password="the-key").test_connection()
    assert (is_usable, message.partition(".")[0]) == (True, f"{address.partition('.')[0]}")
    assert ": key accepted, 2 models." in message
    is_usable, message = connect(monkeypatch, host=address).test_connection()
    assert is_usable
    assert ": request without a key accepted, 2 models." in message


def test_the_connection_test_asks_vertex_ai_with_the_account(
    monkeypatch: pytest.MonkeyPatch, server: Any, credentials: Any
) -> None:
    path = "/v1beta1/publishers/google/models"
    model = model_of_connection(None, {"project": "acme", "location": "europe-west1"})
    assert url_of_list(model) == f"https://europe-west1-aiplatform.googleapis.com{path}"
    server.on("GET", path, {"publisherModels": [{"name": "a"}, {"name": "b"}], "nextPageToken": "more"})
    host = f"http://127.0.0.1:{server.server_port}"
    is_usable, message = connect(monkeypatch, host=host, extra={"project": "acme"}).test_connection()
    assert is_usable, message
    assert message.startswith(f"{host}: account accepted, more than 2 models.")


@pytest.mark.parametrize(
    ("host", "key", "address"),
    [
        (None, "AIza", "https://generativelanguage.googleapis.com/v1beta/models"),
        (None, "sk-proj-1", "https://api.openai.com/v1/models"),
        (None, "sk-ant-1", "https://api.anthropic.com/v1/models"),
        ("https://api.anthropic.com", None, "https://api.anthropic.com/v1/models"),
        ("http://gpu.internal:8000/v1", None, "http://gpu.internal:8000/v1/models"),
        ("https://gateway.example", "k", "https://gateway.example/v1beta/models"),
    ],
)
def test_a_key_is_tested_at_the_server_to_which_it_belongs(
    host: str | None, key: str | None, address: str
) -> None:
    assert url_of_list(model_of_connection(key, {"base_url": host})) == address


def test_a_server_that_lists_no_models_or_does_not_answer_is_named(
    monkeypatch: pytest.MonkeyPatch, server: Any
) -> None:
    host = f"http://127.0.0.1:{server.server_port}/v1"
    is_usable, message = connect(monkeypatch, host=host, password="the-key").test_connection()
    assert is_usable
    assert f"The server at {host}/models lists no models, so the key was not checked" in message
    is_usable, message = connect(monkeypatch, host="http://127.0.0.1:9/v1", password="the-key").test_connection()
    assert not is_usable
    assert message.startswith("The server did not answer. ")
    assert "the-key" not in message


def test_the_connection_test_fails_with_an_invalid_deployment(
    hook: LLMBeamHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__LLMBEAM__DEPLOYMENT", "Not Valid")
    is_usable, message = hook.test_connection()
    assert not is_usable
    assert "'Not Valid'" in message


@pytest.mark.skipif(IS_BELOW_3_2, reason="Airflow 3.1 leaves out such a connection of a variable, and logs why.")
@pytest.mark.parametrize("extra", ['{"project": "acme"', "[1]", "null", '"acme"', "project=acme"])
def test_extra_fields_that_are_no_json_object_are_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, extra: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LLMBEAM_DEFAULT", json.dumps({"conn_type": "llmbeam", "extra": extra}))
    with pytest.raises(
        JobSpecError, match="extra fields of connection 'llmbeam_default' are no JSON object"
    ) as error:
        LLMBeamHook().complete_model({"type": "gemini", "name": "gemini-3.5-flash-lite"})
    assert extra not in str(error.value)
    assert LLMBeamHook().test_connection() == (False, str(error.value))


GATEWAY = {
    "host": "https://gateway.internal/v1",
    "login": "client",
    "password": "the-secret",
    "extra": {
        "headers": {"x-portkey-config": "pc-planted", "apikey": "Bearer planted"},
        "query": {"api-version": "1"},
        "auth": {"type": "oauth", "token_url": "https://issuer.internal/token"},
    },
}
OF_CONNECTION = {"x-portkey-config": "LLMBEAM_HEADER_X_PORTKEY_CONFIG", "apikey": "LLMBEAM_HEADER_APIKEY"}


def test_a_connection_has_what_a_gateway_wants_and_the_spec_no_value_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    masked: list[str] = []
    monkeypatch.setattr("airflow_provider_llmbeam.hooks.llmbeam.mask_secret", masked.append)
    model, environment = connect(monkeypatch, **GATEWAY).complete_model({"type": "openai", "name": "m"})
    assert model == {
        "type": "openai",
        "name": "m",
        "base_url": "https://gateway.internal/v1",
        "headers": OF_CONNECTION,
        "query": {"api-version": "1"},
        "auth": {"type": "oauth", "token_url": "https://issuer.internal/token", "client_id": "client"},
    }
    assert environment == {
        "OPENAI_API_KEY": "the-secret",
        "LLMBEAM_HEADER_X_PORTKEY_CONFIG": "pc-planted",
        "LLMBEAM_HEADER_APIKEY": "Bearer planted",
    }
    assert {*masked} >= {"the-secret", "pc-planted", "Bearer planted", "planted"}
    assert {*OpenAIModel(**model).api.secret_variables} == environment.keys()


def test_a_header_that_the_task_names_keeps_its_variable_and_gets_the_value_of_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = {
        "type": "openai",
        "name": "m",
        "headers": {"X-Portkey-Config": "GUARD", "other": "OTHER"},
        "auth": "bearer",
    }
    model, environment = connect(monkeypatch, **GATEWAY).complete_model(own)
    assert model["headers"] == {**own["headers"], "apikey": OF_CONNECTION["apikey"]}
    assert (model["auth"], environment["GUARD"]) == ("bearer", "pc-planted")


@pytest.mark.parametrize(
    "own",
    [
        {"type": "openai", "name": "m", "base_url": "https://other.internal/v1"},
        {"type": "gemini", "base_url": "https://other.internal"},
        {
            "type": "openai",
            "name": "m",
            "base_url": GATEWAY["host"],
            "auth": {"type": "oauth", "token_url": "https://other.internal/token", "client_id": "client"},
        },
    ],
)
def test_what_the_default_connection_has_for_a_gateway_is_bound_to_its_host(
    monkeypatch: pytest.MonkeyPatch, own: dict[str, Any]
) -> None:
    assert connect(monkeypatch, **GATEWAY).complete_model(own) == (own, {})


def test_gemini_gets_the_headers_of_a_connection_and_no_other_field_of_a_gateway(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, environment = connect(monkeypatch, **GATEWAY).complete_model({"type": "gemini"})
    assert model == {"type": "gemini", "base_url": "https://gateway.internal/v1", "headers": OF_CONNECTION}
    assert environment["GOOGLE_API_KEY"] == "the-secret"


@pytest.mark.parametrize("headers", ["topsecret", ["topsecret"], {"x": {"y": "topsecret"}}])
def test_headers_of_a_connection_that_are_no_texts_are_refused_and_not_repeated(
    monkeypatch: pytest.MonkeyPatch, headers: Any
) -> None:
    hook = connect(monkeypatch, extra={"headers": headers})
    with pytest.raises(JobSpecError, match="`headers` in the extra of connection 'llmbeam_default'") as refused:
        hook.complete_model({"type": "openai", "name": "m"})
    assert "topsecret" not in str(refused.value)


def test_the_connection_test_sends_what_the_gateway_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    with Replying(lambda _: raw({"error": {"message": "no pc-planted"}}, 401)) as server:
        extra = {"headers": {"x-portkey-config": "pc-planted"}, "query": {"api-version": "1"}, "auth": "api-key"}
        hook = connect(monkeypatch, host=f"{server.url}/v1", password="the-key", extra=extra)
        is_usable, message = hook.test_connection()
    (request,) = server.received
    assert request.path == "/v1/models?api-version=1"
    assert request.headers.items() >= {"x-portkey-config": "pc-planted", "api-key": "the-key"}.items()
    assert (is_usable, message) == (False, "The server answered HTTP 401: no ***.")


def test_the_usage_tier_of_the_connection_is_that_of_jobs_which_have_a_threshold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    extra = json.dumps({"project": "acme", "location": "global", "usage_tier": 3})
    monkeypatch.setenv("AIRFLOW_CONN_TIER", json.dumps({"conn_type": "llmbeam", "extra": extra}))
    hook, job = LLMBeamHook("tier"), {"model": {"type": "gemini", "name": "gemini-2.5-flash"}}
    assert hook.complete(job)[0]["limits"] == {"usage_tier": 3}
    assert hook.complete({**job, "limits": {"usage_tier": 1}})[0]["limits"] == {"usage_tier": 1}
    for changes in (
        {"model": {"type": "gemini", "name": "gemini-2.5-flash", "location": "us-central1"}},
        {"model": {"type": "echo"}},
        {"inference": {"service_tier": "flex"}},
    ):
        assert "limits" not in hook.complete({**job, **changes})[0]


def test_a_job_is_completed_by_one_look_at_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend of secrets is asked over the network."""
    monkeypatch.setenv("AIRFLOW_CONN_TIERED", json.dumps({"conn_type": "llmbeam", "extra": {"usage_tier": 3}}))
    looks: list[str] = []

    def look(name: str) -> Any:
        looks.append(name)
        return BaseHook.get_connection(name)

    hook = LLMBeamHook("tiered")
    monkeypatch.setattr(hook, "get_connection", look)
    completed, _ = hook.complete({"model": {"type": "gemini", "name": "gemini-3.5-flash", "project": "p"}})
    assert (completed["limits"], looks) == ({"usage_tier": 3}, ["tiered"])
