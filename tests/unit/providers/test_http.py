from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from datetime import UTC, datetime, timedelta

import pytest
from llmbeam_sandbox import Sandbox

from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.providers import http
from airflow_provider_llmbeam.providers.access import FixedAccess
from airflow_provider_llmbeam.providers.backends import open_backend
from airflow_provider_llmbeam.providers.http import HttpClient, open_session
from airflow_provider_llmbeam.spec import Embedding, GeminiModel, Generation, OpenAIModel, VertexEndpointModel
from tests.replying import Replying, raw

ENDPOINT = "projects/p/locations/us-central1/endpoints/1"


async def fetch(address: str) -> str:
    async with open_session(address) as session, session.get(f"{address}/") as response:
        return await response.text()


@pytest.fixture
def server():
    with Sandbox() as running:
        yield running


def test_requests_go_through_the_proxy_of_the_environment(monkeypatch, server):
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    # The sandbox answers in the place of the proxy, and names the host that it was asked for.
    assert "refuses host 'model.invalid'" in asyncio.run(fetch("http://model.invalid"))


@pytest.mark.parametrize("addresses", ["127.0.0.1", "10.0.0.0/8, 127.0.0.0/8", "*"])
def test_requests_to_addresses_in_no_proxy_are_direct(monkeypatch, server, addresses):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", addresses)
    assert asyncio.run(fetch(server.url)) == "OK"


@pytest.fixture
def other():
    with Replying(lambda _: raw({})) as running:
        yield running


@pytest.fixture
def _credentials(monkeypatch, tmp_path):
    user = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
    expiry = (datetime.now(UTC) + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    (tmp_path / "adc.json").write_text(json.dumps(user | {"token": "t", "expiry": expiry}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "adc.json"))
    monkeypatch.setenv("GOOGLE_API_KEY", "secret-key")
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key")


def endpoint(url, request_format):
    return VertexEndpointModel(
        type="vertex_endpoint", name="m", endpoint=ENDPOINT, base_url=url, request_format=request_format
    )


BACKENDS = {
    "openai": lambda url: (OpenAIModel(type="openai", name="m", base_url=f"{url}/v1"), Generation(), None),
    "openai stream": lambda url: (
        OpenAIModel(type="openai", name="m", base_url=f"{url}/v1"),
        Generation(stream=True),
        None,
    ),
    "openai embeddings": lambda url: (
        OpenAIModel(type="openai", name="m", base_url=f"{url}/v1"),
        Generation(),
        Embedding(),
    ),
    "gemini": lambda url: (GeminiModel(base_url=url), Generation(), None),
    "gemini stream": lambda url: (GeminiModel(base_url=url), Generation(stream=True), None),
    "gemini vertex": lambda url: (GeminiModel(base_url=url, project="p"), Generation(), None),
    "gemini embeddings": lambda url: (GeminiModel(base_url=url), Generation(), Embedding()),
    "chat": lambda url: (endpoint(url, "chat"), Generation(), None),
    "instances": lambda url: (endpoint(url, "instances"), Generation(), None),
    "raw": lambda url: (endpoint(url, "raw"), Generation(), None),
}


def ask(model, generation, embedding, prompt="a prompt"):
    async def main():
        backend = open_backend(model, generation, None, embedding)
        try:
            return await backend.complete(Prompt(prompt))
        except RequestError as error:
            return error
        finally:
            await backend.aclose()

    return asyncio.run(main())


@pytest.mark.usefixtures("_credentials")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("name", BACKENDS)
def test_a_redirect_is_refused_and_names_both_servers(other, name, status):
    location = f"{other.url.replace('//', '//user:secret@')}/v1?key=secret"
    with Replying(lambda _: raw("moved", status, Location=location)) as server:
        error = ask(*BACKENDS[name](server.url))
    assert (error.kind, error.http_status) == ("not_found", status)
    assert error.message.startswith(f"{server.url} redirects to {other.url} (HTTP {status})")
    assert "set `model.base_url`" in error.message
    assert "secret" not in error.message
    assert len(server.received) == 1
    assert other.received == [], "neither the key nor the prompt"


@pytest.mark.usefixtures("_credentials")
def test_a_large_request_is_not_sent_on_either(other):
    with Replying(lambda _: raw("moved", 307, Location=other.url)) as server:
        error = ask(*BACKENDS["raw"](server.url), prompt="a" * 2**21)
    assert error.kind == "not_found"
    assert other.received == []


def test_cookies_of_a_server_are_not_kept():
    seen = []

    def answer(request):
        seen.append(request.headers.get("Cookie"))
        return raw({}, Set_Cookie=f"a{len(seen)}={'x' * 1000}; Path=/")

    async def main(url):
        client = HttpClient(url, FixedAccess())
        for _ in range(3):
            async with client.post(url, {}) as response:
                await response.read()
        await client.aclose()

    with Replying(answer) as server:
        asyncio.run(
            main(server.url.replace("127.0.0.1", "localhost"))
        )  # aiohttp never keeps those of an IP address
    assert seen == [None] * 3


def failed_post(address: str) -> RequestError:
    async def post() -> None:
        client = HttpClient(address, FixedAccess())
        try:
            async with client.post(address, {}) as response:
                await response.read()
        finally:
            await client.aclose()

    with pytest.raises(RequestError) as caught:
        asyncio.run(post())
    assert caught.value.kind == "connection"
    assert caught.value.is_outage
    return caught.value


def test_a_refused_connection_is_one_that_the_server_cannot_have_received():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
    assert failed_post(address).is_unconnected


def test_an_address_that_never_accepts_is_not_waited_for_like_a_slow_answer(monkeypatch):
    monkeypatch.setattr(http, "CONNECT_SECONDS", 0.1)
    with socket.socket() as full, contextlib.ExitStack() as waiting:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(3):  # the kernel drops further ones
            other = waiting.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex(full.getsockname())
        assert failed_post(f"http://127.0.0.1:{full.getsockname()[1]}").is_unconnected


def test_a_connection_that_breaks_after_the_request_may_be_the_fault_of_its_row():
    with Replying(lambda _: b"") as broken:
        assert not failed_post(broken.url).is_unconnected
