"""Requests to servers that check what gateways want: headers, query, keys, tokens and certificates."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, parse_qsl, urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.hooks.google.authentication import ModelAuthentication
from airflow_provider_llmbeam.hooks.model_list import describe_access
from airflow_provider_llmbeam.hooks.probe import Prober
from airflow_provider_llmbeam.providers.backends import open_backend
from airflow_provider_llmbeam.spec import Embedding, GeminiModel, Generation, OpenAIModel
from airflow_provider_llmbeam.transport import client_credentials
from tests.replying import Replying, chat_reply, raw

KEY = "planted-gateway-key"
#: What gateways check, see docs/reference/gateways.md: fields of the model, path, and headers of the request.
GATEWAYS = {
    "LiteLLM": ({}, "/v1/chat/completions", {"authorization": f"Bearer {KEY}"}),
    "LiteLLM behind IAM": (
        {"headers": {"x-litellm-api-key": "LITELLM"}},
        None,
        {"x-litellm-api-key": "of-LITELLM"},
    ),
    "Portkey": (
        {"headers": {"x-portkey-api-key": "PORTKEY", "x-portkey-config": "CONFIG"}},
        "/v1/chat/completions",
        {"x-portkey-api-key": "of-PORTKEY", "x-portkey-config": "of-CONFIG", "authorization": f"Bearer {KEY}"},
    ),
    "Kong": ({"headers": {"apikey": "KONG"}}, None, {"apikey": "of-KONG"}),
    "Azure OpenAI": (
        {"base_url": "/openai/deployments/mini", "query": {"api-version": "2024-10-21"}, "auth": "api-key"},
        "/openai/deployments/mini/chat/completions?api-version=2024-10-21",
        {"api-key": KEY},
    ),
    "Azure API Management": (
        {"headers": {"Ocp-Apim-Subscription-Key": "APIM"}, "query": {"api-version": "2024-10-21"}},
        "/v1/chat/completions?api-version=2024-10-21",
        {"ocp-apim-subscription-key": "of-APIM"},
    ),
    "Cloudflare": (
        {"headers": {"cf-aig-authorization": "CLOUDFLARE"}},
        None,
        {"cf-aig-authorization": "of-CLOUDFLARE", "authorization": f"Bearer {KEY}"},
    ),
    "x-api-key": ({"auth": {"type": "x-api-key"}}, None, {"x-api-key": KEY}),
    "basic": ({"headers": {"authorization": "BASIC"}}, None, {"authorization": "of-BASIC"}),
}


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for name in ("LITELLM", "PORTKEY", "CONFIG", "KONG", "APIM", "CLOUDFLARE", "BASIC"):
        monkeypatch.setenv(name, f"of-{name}")


def model(server, base_url="/v1", **fields):
    return OpenAIModel(type="openai", name="m", base_url=f"{server.url}{base_url}", **fields)


def complete(model, number=1, embedding=None):
    async def send():
        backend = open_backend(model, Generation(), None, embedding)
        try:
            if embedding is not None:
                return await backend.complete_batch([Prompt(text="Hi")])
            return [await backend.complete(Prompt(text="Hi")) for _ in range(number)]
        finally:
            await backend.aclose()

    return asyncio.run(send())


def headers_of(request):
    return {name.lower(): value for name, value in request.headers.items()}


@pytest.mark.parametrize("gateway", GATEWAYS)
def test_a_gateway_gets_the_headers_the_query_and_the_key_that_it_wants(gateway):
    fields, path, wanted = GATEWAYS[gateway]
    with Replying(lambda _: chat_reply("Hi.")) as server:
        complete(model(server, **fields))
    (request,) = server.received
    sent = headers_of(request)
    assert sent.items() >= wanted.items()
    assert path in (None, request.path)
    keys = {name for name, value in sent.items() if KEY in value}
    assert keys == {name for name, value in wanted.items() if KEY in value} or "authorization" not in wanted
    assert "of-" not in request.path
    assert json.loads(request.body)["model"] == "m"


def test_embeddings_the_list_of_models_and_probes_go_the_same_way():
    fields = {"query": {"api-version": "1"}, "auth": "api-key", "headers": {"apikey": "KONG"}}
    vectors = {"data": [{"index": 0, "embedding": [0.5]}], "choices": [{"message": {"content": "a"}}]}
    with Replying(lambda _: raw(vectors)) as server:
        found = model(server, **fields)
        complete(found, embedding=Embedding())
        assert describe_access(found, {}) == "key accepted, 1 models"
        assert Prober(found, authenticate=ModelAuthentication(found)).probe(1).answered == 1
    assert [request.path.partition("?")[::2] for request in server.received] == [
        (f"/v1/{name}", "api-version=1") for name in ("embeddings", "models", "chat/completions")
    ]
    for request in server.received:
        assert headers_of(request).items() >= {"api-key": KEY, "apikey": "of-KONG"}.items()


def test_gemini_through_a_gateway_has_its_headers(monkeypatch):
    monkeypatch.setenv("GOOGLE_API_KEY", KEY)
    answer = {"candidates": [{"content": {"parts": [{"text": "Hi."}]}, "finishReason": "STOP"}]}
    with Replying(lambda _: raw(answer)) as server:
        complete(GeminiModel(base_url=server.url, headers={"cf-aig-authorization": "CLOUDFLARE"}))
    wanted = {"x-goog-api-key": KEY, "cf-aig-authorization": "of-CLOUDFLARE"}
    assert headers_of(server.received[0]).items() >= wanted.items()


@pytest.mark.parametrize(
    ("value", "fault"),
    [("", "is not set"), ("a\r\nx: y", "is no printable ASCII text"), ("schlüssel", "is no print")],
)
def test_a_header_without_a_value_that_can_be_sent_is_refused_before_anything_is_sent(monkeypatch, value, fault):
    monkeypatch.setenv("KONG", value)
    with Replying(lambda _: chat_reply("Hi.")) as server:
        with pytest.raises(
            JobSpecError, match=f"'apikey' is in the environment variable 'KONG', which {fault}"
        ) as no:
            complete(model(server, headers={"apikey": "KONG"}))
        assert not value or value not in str(no.value)
    assert server.received == []


def test_nothing_is_sent_to_the_target_of_a_redirect():
    with Replying(lambda _: chat_reply("Hi.")) as target:
        moved = raw("", 307, Location=f"{target.url}/v1/chat/completions")
        with Replying(lambda _: moved) as server, pytest.raises(RequestError, match="redirects to"):
            complete(model(server, headers={"apikey": "KONG"}, auth="api-key"))
    assert (len(server.received), target.received) == (1, [])


@pytest.mark.parametrize(
    "name", ["x-request-id", "x-litellm-call-id", "apim-request-id", "cf-aig-log-id", "X-Kong-Request-Id"]
)
def test_the_id_of_a_refused_request_is_that_of_its_gateway(name):
    said = raw({"error": {"message": f"no: {KEY}"}}, 400, **{name: "r-1"})
    with Replying(lambda _: said) as server, pytest.raises(RequestError) as refused:
        complete(model(server))
    assert (refused.value.request_id, refused.value.message) == ("r-1", "no: ***")


class Issuer:
    """A token endpoint, and a server that accepts each token for some requests."""

    def __init__(self, uses=100, expires_in=3600, answer=None):
        self.uses, self.expires_in, self.answer = uses, expires_in, answer
        self.asked, self.sent = [], []

    def __call__(self, request):
        if urlsplit(request.path).path == "/token":
            self.asked.append(request)
            if self.answer is not None:
                return self.answer
            token = f"planted-opaque-token-{len(self.asked)}"
            return raw({"access_token": token, "token_type": "Bearer", "expires_in": self.expires_in})
        token = headers_of(request)["authorization"].removeprefix("Bearer ")
        self.sent.append(token)
        if self.sent.count(token) > self.uses or token != f"planted-opaque-token-{len(self.asked)}":
            return raw({"error": {"message": f"Invalid token: {token}"}}, 401)
        return chat_reply("Hi.")


@contextmanager
def issuing(**settings):
    issuer = Issuer(**settings)
    with Replying(issuer) as server:
        auth = {"type": "oauth", "token_url": f"{server.url}/token", "client_id": "a b", "scope": "all-apis x"}
        yield issuer, model(server, auth=auth)


def test_oauth_gets_one_token_for_all_requests_with_the_secret_of_the_client():
    with issuing() as (issuer, found):
        complete(found, 3)
    (asked,) = issuer.asked
    user = headers_of(asked)["authorization"].removeprefix("Basic ")
    assert base64.b64decode(user).decode() == f"a+b:{KEY}"
    assert parse_qs(asked.body.decode()) == {"grant_type": ["client_credentials"], "scope": ["all-apis x"]}
    assert issuer.sent == ["planted-opaque-token-1"] * 3


def test_oauth_renews_a_token_before_it_expires(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(client_credentials.time, "monotonic", lambda: now[0])
    with issuing(expires_in=60) as (_, found):
        access = ModelAuthentication(found)
        tokens = []
        for now[0] in (0.0, 40.0, 50.0):
            tokens.append(access()["authorization"])
    assert tokens == [f"Bearer planted-opaque-token-{number}" for number in (1, 1, 2)]


def test_oauth_replaces_a_token_that_is_refused_and_shows_none(monkeypatch):
    monkeypatch.setattr("airflow_provider_llmbeam.transport.google_auth._YOUNG_SECONDS", 0.0)
    with issuing(uses=1) as (issuer, found):
        complete(found, 2)
    assert issuer.sent == [f"planted-opaque-token-{number}" for number in (1, 1, 2)]
    with issuing(uses=0) as (_, found), pytest.raises(RequestError) as refused:
        complete(found)
    assert (refused.value.kind, refused.value.message) == ("unauthorized", "Invalid token: ***")


@pytest.mark.parametrize(
    ("status", "kind", "type_name"),
    [(401, "unauthorized", "AccessDeniedError"), (503, "connection", "CloudUnavailableError")],
)
def test_a_token_endpoint_that_refuses_is_quoted_without_the_secret(status, kind, type_name):
    said = raw({"error": "invalid_client", "error_description": f"client_secret={KEY}"}, status)
    with issuing(answer=said) as (_, found):
        with pytest.raises(RequestError, match=f"no token: .*HTTP {status}: invalid_client: ") as refused:
            complete(found)
        with pytest.raises(Exception, match=r"`model.auth` got no token: .*invalid_client") as denied:
            ModelAuthentication(found)()
    assert (refused.value.kind, type(denied.value).__name__) == (kind, type_name)
    assert KEY not in f"{refused.value}{denied.value}"


def test_a_redirect_of_a_token_endpoint_gets_no_secret():
    with Replying(lambda _: raw({})) as target:
        moved = raw("", 307, Location=f"{target.url}/token")
        with issuing(answer=moved) as (_, found), pytest.raises(RequestError, match="redirects to"):
            complete(found)
    assert target.received == []


@pytest.fixture
def certificate(tmp_path):
    """A file with a key and its own certificate, for `localhost`."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    forms = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    file = tmp_path / "client.pem"
    file.write_bytes(key.private_bytes(*forms) + signed.public_bytes(serialization.Encoding.PEM))
    return str(file)


def test_a_server_that_requires_a_certificate_of_the_client_gets_it(certificate, monkeypatch):
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.setenv(name, certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    context.load_verify_locations(certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    with Replying(lambda _: chat_reply("Hi.")) as server:
        server._server.socket = context.wrap_socket(server._server.socket, server_side=True)
        address = f"https://localhost:{urlsplit(server.url).port}/v1"
        fields = {"type": "openai", "name": "m", "base_url": address}
        found = OpenAIModel(**fields, auth={"certificate_file": certificate})
        assert [reply.text for reply in complete(found)] == ["Hi."]
        assert Prober(found, authenticate=ModelAuthentication(found)).probe(1).answered == 1
        with pytest.raises(RequestError) as refused:
            complete(OpenAIModel(**fields))
        assert refused.value.kind == "connection"
    assert len(server.received) == 2


def test_a_certificate_that_is_not_there_is_refused_before_anything_is_sent(tmp_path):
    with Replying(lambda _: chat_reply("Hi.")) as server:
        found = model(server, auth={"certificate_file": "/none.pem", "key_file": "/none.key"})
        for send in (complete, lambda found: Prober(found, authenticate=ModelAuthentication(found)).probe(1)):
            with pytest.raises(JobSpecError, match=r"'/none.pem' and '/none.key' cannot be used here"):
                send(found)
    assert server.received == []


def test_a_query_is_encoded():
    found = OpenAIModel(type="openai", name="m", base_url="http://g/v1", query={"a b": "c&d"})
    assert parse_qsl(urlsplit(found.url_of("chat/completions")).query) == [("a b", "c&d")]
