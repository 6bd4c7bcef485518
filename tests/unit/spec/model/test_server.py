from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_llmbeam.spec import EchoModel, GeminiModel, Model, OpenAIModel, VertexEndpointModel
from airflow_provider_llmbeam.spec.model.server import Server, server_of

ENDPOINT = "projects/p/locations/us-central1/endpoints/7"


def openai(base_url: str | None = None) -> OpenAIModel:
    return OpenAIModel.parse({"type": "openai", "name": "m"} | ({"base_url": base_url} if base_url else {}))


def vertex(**fields: Any) -> VertexEndpointModel:
    return VertexEndpointModel.parse({"type": "vertex_endpoint", "name": "m", "endpoint": ENDPOINT, **fields})


@pytest.mark.parametrize(
    ("model", "origin"),
    [
        (GeminiModel(), "https://generativelanguage.googleapis.com:443"),
        (GeminiModel(project="p"), "https://aiplatform.googleapis.com:443"),
        (GeminiModel(project="p", location="europe-west1"), "https://europe-west1-aiplatform.googleapis.com:443"),
        (
            GeminiModel(base_url="https://aiplatform-psc.p.googleapis.com"),
            "https://aiplatform-psc.p.googleapis.com:443",
        ),
        (openai(), "https://api.openai.com:443"),
        (openai("https://EU.api.OpenAI.com./v1"), "https://eu.api.openai.com:443"),
        (openai("https://llm-abc-uc.a.run.app/v1"), "https://llm-abc-uc.a.run.app:443"),
        (vertex(), "https://us-central1-aiplatform.googleapis.com:443"),
        (
            vertex(base_url="https://7.us-central1-1.prediction.vertexai.goog"),
            "https://7.us-central1-1.prediction.vertexai.goog:443",
        ),
    ],
)
def test_the_addresses_of_google_and_openai_are_those_of_a_provider(model: Model, origin: str) -> None:
    server = server_of(model, {})
    assert server == Server("provider", origin)
    assert server.namespace(is_shared=True) == server.namespace(is_shared=False) == ""
    sandbox = "http://127.0.0.1:1"
    assert server_of(model, {"LLMBEAM_SANDBOX_URL": sandbox}) == Server("loopback", sandbox)


@pytest.mark.parametrize(
    ("url", "origin", "namespace"),
    [
        ("https://VLLM.internal/v1", "https://vllm.internal:443", "@https-vllm.internal%3A443"),
        ("http://vllm:8000/v1", "http://vllm:8000", "@http-vllm%3A8000"),
        ("http://VLLM/v1", "http://vllm:80", "@http-vllm%3A80"),
        ("http://[fd00::1]:8000/v1", "http://[fd00::1]:8000", "@http-%5Bfd00%3A%3A1%5D%3A8000"),
        ("http://10.0.0.7/v1", "http://10.0.0.7:80", "@http-10.0.0.7%3A80"),
        ("http://api.openai.com/v1", "http://api.openai.com:80", "@http-api.openai.com%3A80"),
        ("https://evilgoogleapis.com", "https://evilgoogleapis.com:443", "@https-evilgoogleapis.com%3A443"),
        ("https://googleapis.com.evil/v1", "https://googleapis.com.evil:443", "@https-googleapis.com.evil%3A443"),
        ("https://127.0.0.1.nip.io", "https://127.0.0.1.nip.io:443", "@https-127.0.0.1.nip.io%3A443"),
    ],
)
def test_another_address_shares_its_answers_with_no_other_server(url: str, origin: str, namespace: str) -> None:
    server = server_of(openai(url), {})
    assert server == Server("custom", origin)
    assert server.namespace(is_shared=True) == namespace
    assert server.namespace(is_shared=False) == "@custom", "a job keeps its answers when its server moves"


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.8.9.10:8000",
        "localhost:11434",
        "LOCALHOST.",
        "llm.localhost",
        "[::1]:8000",
        "[::ffff:127.0.0.1]",
        "0.0.0.0:8000",
        "[::]",
    ],
)
@pytest.mark.parametrize("kind", ["openai", "gemini", "vertex"])
def test_an_address_of_this_machine_is_loopback(host: str, kind: str) -> None:
    url = f"http://{host}/v1"
    model = {"openai": openai(url), "gemini": GeminiModel(base_url=url), "vertex": vertex(base_url=url)}[kind]
    server = server_of(model, {})
    assert server.kind == "loopback"
    assert server.namespace(is_shared=True) == server.namespace(is_shared=False) == "@loopback"


@pytest.mark.parametrize("url", ["http://h:port/v1", "http://[::1/v1"])
def test_an_invalid_address_is_no_provider(url: str) -> None:
    assert server_of(openai(url), {}).kind == "custom"


def test_an_echo_has_no_server() -> None:
    assert server_of(EchoModel(type="echo"), {"LLMBEAM_SANDBOX_URL": "u"}) == Server("provider", "")
    assert str(server_of(EchoModel(type="echo"), {})) == "provider"
    assert str(server_of(openai("http://vllm:8000/v1"), {})) == "custom (http://vllm:8000)"
