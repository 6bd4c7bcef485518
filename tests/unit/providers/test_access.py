from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import google.auth
import pytest
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth import compute_engine, impersonated_credentials
from google.oauth2 import credentials as user_credentials

from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.providers.access import open_access, secrets_in
from airflow_provider_llmbeam.providers.http import HttpClient
from airflow_provider_llmbeam.providers.openai.client import OpenAIBackend
from airflow_provider_llmbeam.providers.openai.embeddings import OpenAIEmbeddings
from airflow_provider_llmbeam.spec import Embedding, Generation, OpenAIModel
from airflow_provider_llmbeam.transport.google_auth import id_token_credentials, token_request
from tests.replying import Replying, raw

AUDIENCE = "https://llmbeam-1.a.run.app"
Body = Callable[[OpenAIModel], Awaitable[Any]]


def jwt(**claims: Any) -> str:
    parts = [{"alg": "none"}, {"aud": AUDIENCE, **claims}]
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*encoded, "c2ln"])


class CloudRun:
    """A token service and a service that accepts each token a limited number of times."""

    def __init__(self, token_seconds: float = 3600, uses: int = 1_000_000) -> None:
        self.token_seconds = token_seconds
        self.uses = uses
        self.made: list[str] = []
        self.served: list[str] = []
        self.refused = 0
        self.url = ""

    async def token(self, request: web.Request) -> web.Response:
        assertion = dict(await request.post())["assertion"]
        claims = json.loads(base64.urlsafe_b64decode(str(assertion).split(".")[1] + "=="))
        assert claims["target_audience"] == AUDIENCE
        await asyncio.sleep(0.05)
        self.made.append(jwt(exp=int(time.time() + self.token_seconds), number=len(self.made)))
        return web.json_response({"id_token": self.made[-1]})

    async def chat(self, request: web.Request) -> web.Response:
        token = request.headers["Authorization"].removeprefix("Bearer ")
        if token not in self.made or self.served.count(token) >= self.uses:
            self.refused += 1
            return web.Response(status=401, text="<html>401 Unauthorized</html>")
        self.served.append(token)
        message = {"role": "assistant", "content": "Hi."}
        vectors = [{"index": 0, "embedding": [0.5]}]
        return web.json_response({"choices": [{"message": message}], "data": vectors})

    def run(self, body: Body, key: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        async def main() -> Any:
            app = web.Application()
            app.router.add_post("/token", self.token)
            app.router.add_post("/v1/{method:.*}", self.chat)
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            try:
                await web.TCPSite(runner, "127.0.0.1", 0).start()
                host, port = runner.addresses[0][:2]
                self.url = f"http://{host}:{port}"
                monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", service_account(key, f"{self.url}/token"))
                return await body(model(f"{self.url}/v1"))
            finally:
                await runner.cleanup()

        return asyncio.run(main())


def model(base_url: str = "http://127.0.0.1:9/v1") -> OpenAIModel:
    return OpenAIModel(type="openai", name="gemma", base_url=base_url, id_token_audience=AUDIENCE)


def headers_of_a_request() -> Mapping[str, str]:
    async def main() -> Mapping[str, str]:
        return await HttpClient("http://127.0.0.1:9", open_access(model())).headers()

    return asyncio.run(main())


def service_account(path: Path, token_uri: str) -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    account = {
        "type": "service_account",
        "project_id": "p",
        "client_email": "job@p.example",
        "token_uri": token_uri,
    }
    path.write_text(json.dumps(account | {"private_key": key.decode()}))
    return str(path)


def test_one_id_token_serves_all_requests_and_no_api_key_is_sent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "not-for-them")
    service = CloudRun()

    async def body(model: OpenAIModel) -> None:
        backend = OpenAIBackend(model, Generation(), None)
        await asyncio.gather(*(backend.complete(Prompt(f"{number}")) for number in range(20)))
        await backend.complete(Prompt("later"))
        await backend.aclose()

    service.run(body, tmp_path / "key.json", monkeypatch)
    assert (len(service.made), len(service.served), service.refused) == (1, 21, 0)


def test_embedding_requests_carry_an_id_token_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    service = CloudRun()

    async def body(model: OpenAIModel) -> Any:
        backend = OpenAIEmbeddings(model, Embedding())
        reply = await backend.complete(Prompt("a"))
        await backend.aclose()
        return reply.vector

    assert service.run(body, tmp_path / "key.json", monkeypatch) == [0.5]


def test_a_token_is_renewed_before_it_expires(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A token must not expire during a request, so it is renewed minutes before its end."""
    service = CloudRun(token_seconds=200)

    async def body(model: OpenAIModel) -> None:
        backend = OpenAIBackend(model, Generation(), None)
        await backend.complete(Prompt("a"))
        service.token_seconds = 3600
        await asyncio.gather(*(backend.complete(Prompt(f"{number}")) for number in range(8)))
        await backend.aclose()

    service.run(body, tmp_path / "key.json", monkeypatch)
    assert (len(service.made), service.refused) == (2, 0)
    assert [service.served.count(token) for token in service.made] == [1, 8]


def test_a_token_is_fetched_in_another_thread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    key = service_account(tmp_path / "key.json", "http://127.0.0.1:9/token")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", key)
    makers: list[int] = []

    def refresh(credentials: Any, _: Any) -> None:
        makers.append(threading.get_ident())
        credentials.token, credentials.expiry = "t", None

    monkeypatch.setattr("google.oauth2.service_account.IDTokenCredentials.refresh", refresh)
    headers = headers_of_a_request()
    assert headers["authorization"] == "Bearer t"
    assert makers != [threading.get_ident()]


def test_a_401_renews_the_token_once_for_all_requests_in_flight(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("airflow_provider_llmbeam.transport.google_auth._YOUNG_SECONDS", 0.0)
    service = CloudRun()

    async def body(model: OpenAIModel) -> None:
        backend = OpenAIBackend(model, Generation(), None)
        await backend.complete(Prompt("a"))
        service.uses = 8
        service.served.extend(service.made * 8)  # the first token is refused from here on
        await asyncio.gather(*(backend.complete(Prompt(f"{number}")) for number in range(8)))
        await backend.aclose()

    service.run(body, tmp_path / "key.json", monkeypatch)
    assert (len(service.made), service.refused) == (2, 8)
    assert service.served.count(service.made[1]) == 8


def test_a_service_that_refuses_every_token_is_unauthorized_and_no_further_token_is_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    service = CloudRun(uses=0)

    async def body(model: OpenAIModel) -> list[Any]:
        backend = OpenAIBackend(model, Generation(), None)
        found = [await asyncio.gather(backend.complete(Prompt("a")), return_exceptions=True) for _ in range(5)]
        await backend.aclose()
        return [error for (error,) in found]

    errors = service.run(body, tmp_path / "key.json", monkeypatch)
    assert {error.kind for error in errors} == {"unauthorized"}
    assert (len(service.made), service.refused) == (1, 5)


def test_an_unreachable_token_service_is_a_connection_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key = service_account(tmp_path / "key.json", "http://127.0.0.1:9/token")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", key)
    with pytest.raises(RequestError) as caught:
        headers_of_a_request()
    assert caught.value.kind == "connection"


@pytest.mark.parametrize(("status", "kind"), [(503, "connection"), (400, "unauthorized")])
def test_an_error_of_the_token_service_is_a_connection_error_and_a_refusal_is_final(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: int, kind: str
) -> None:
    monkeypatch.setattr("google.auth._exponential_backoff.time.sleep", lambda _: None)
    with Replying(lambda _: raw({"error": "no"}, status)) as service:
        key = service_account(tmp_path / "key.json", f"{service.url}/token")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", key)
        with pytest.raises(RequestError, match="no token: RefreshError") as caught:
            headers_of_a_request()
    assert caught.value.kind == kind
    assert caught.value.is_unconnected == (status == 503), "it costs no row an attempt"


def test_an_impersonated_account_has_id_tokens_of_its_own() -> None:
    source = user_credentials.Credentials("t")  # type: ignore[no-untyped-call]
    found = impersonated_credentials.Credentials(source, "job@p.example", ["s"])  # type: ignore[no-untyped-call]
    made = id_token_credentials(found, AUDIENCE, token_request())
    assert isinstance(made, impersonated_credentials.IDTokenCredentials)
    assert made._target_audience == AUDIENCE


@pytest.fixture
def metadata_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A metadata server, which tells a Google Cloud machine about its service account."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            is_token = "/identity?" in self.path
            text = jwt(exp=int(time.time()) + 3600) if is_token else '{"email": "job@p.example", "scopes": []}'
            self.send_response(200)
            self.send_header("Metadata-Flavor", "Google")
            self.send_header("Content-Type", "text/html" if is_token else "application/json")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    place = f"127.0.0.1:{server.server_port}"
    monkeypatch.setattr("google.auth.compute_engine._metadata._GCE_METADATA_HOST", place)
    yield paths
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_google_cloud_machine_gets_its_token_from_the_metadata_server(
    monkeypatch: pytest.MonkeyPatch, metadata_server: list[str]
) -> None:
    found = compute_engine.Credentials()  # type: ignore[no-untyped-call]
    monkeypatch.setattr(google.auth, "default", lambda **_: (found, "p"))
    headers = headers_of_a_request()
    assert headers["authorization"].startswith("Bearer ey")
    assert "/instance/service-accounts/default/identity?audience=https" in metadata_server[-1]


def test_a_metadata_server_without_an_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compute_engine.Credentials()  # type: ignore[no-untyped-call]
    monkeypatch.setattr(google.auth, "default", lambda **_: (found, "p"))
    monkeypatch.setattr("google.auth.compute_engine._metadata._GCE_METADATA_HOST", "127.0.0.1:9")
    monkeypatch.setattr("google.auth._exponential_backoff.time.sleep", lambda seconds: None)
    with pytest.raises(JobSpecError, match="the metadata server of this machine does not answer"):
        open_access(model())


def test_the_error_for_user_credentials_suggests_impersonation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key = tmp_path / "adc.json"
    user = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
    key.write_text(json.dumps(user))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    with pytest.raises(JobSpecError) as caught:
        open_access(model())
    words = str(caught.value)
    assert f"`model.id_token_audience` '{AUDIENCE}'" in words
    assert "Nothing was sent or billed." in words
    assert "--impersonate-service-account=EMAIL" in words


def test_missing_credentials_for_cloud_run_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(**_: Any) -> Any:
        raise google.auth.exceptions.DefaultCredentialsError("Nobody.")

    monkeypatch.setattr(google.auth, "default", nobody)
    with pytest.raises(JobSpecError, match=r"`model\.id_token_audience`\) needs Google credentials: Nobody"):
        open_access(model())


@pytest.mark.parametrize("status", [302, 307])
def test_a_token_service_that_redirects_gets_no_assertion_sent_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: int
) -> None:
    """Once a 307 sent the signed assertion to the other server, and its token to the model."""
    with (
        Replying(lambda _: raw({"id_token": jwt(exp=2**32)})) as other,
        Replying(lambda _: raw("", status, Location=f"{other.url}/token")) as service,
    ):
        key = service_account(tmp_path / "key.json", f"{service.url}/token")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", key)

        async def main() -> None:
            backend = OpenAIBackend(model(), Generation(), None)
            await backend.complete(Prompt("a"))

        with pytest.raises(RequestError) as caught:
            asyncio.run(main())
    assert caught.value.kind == "unauthorized", "final: a retry would be redirected, too"
    assert f"{service.url} redirects to {other.url} (HTTP {status})" in caught.value.message
    assert "`token_uri`" in caught.value.message
    assert other.received == []


def test_the_secrets_of_a_header_are_its_whole_value_what_follows_a_scheme_and_the_secret_fields_of_json() -> None:
    config = '{"provider": "openai", "api_key": "of-the-provider"}'
    headers = {
        "apikey": "one two three",
        "x-config": config,
        "x-a": "Token of-a-scheme",
        "x-goog-user-project": "1",
    }
    assert {*secrets_in(headers)} >= {"one two three", config, "of-the-provider", "of-a-scheme"}
    assert "1" not in secrets_in(headers)
