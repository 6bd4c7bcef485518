from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from google import genai
from google.genai import types
from google.oauth2 import credentials as google_credentials
from llmbeam_sandbox import Fault, Sandbox, prompt_sha256
from llmbeam_sandbox.core.methods import Method
from llmbeam_sandbox.models.embedding.base import vector

from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.providers.gemini.embeddings import GeminiEmbeddings, _method, _replies
from airflow_provider_llmbeam.providers.reported import UsageReader
from airflow_provider_llmbeam.spec import Embedding, GeminiModel

pytestmark = pytest.mark.promise(5)
EMBEDDING = Embedding(dimensions=5, task_type="RETRIEVAL_DOCUMENT")
VERTEX = {"project": "p", "location": "us-central1"}
#: Model, its location, its method of the sandbox, and the maximum of texts per request.
WAYS: list[tuple[str, dict[str, str], Method, int]] = [
    ("gemini-embedding-001", {}, "gemini.batchEmbedContents", 100),
    ("gemini-embedding-2", {}, "gemini.batchEmbedContents", 100),
    ("text-embedding-005", VERTEX, "gemini.predict", 250),
    ("gemini-embedding-001", VERTEX, "gemini.predict", 1),
    ("gemini-embedding-2", VERTEX, "gemini.embedContent", 1),
]


@pytest.fixture(autouse=True)
def _access(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, _no_keys: None) -> None:
    credentials = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
    path = tmp_path / "adc.json"
    path.write_text(json.dumps({**credentials, "token": "t", "expiry": "2099-01-01T00:00:00Z"}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    monkeypatch.setenv("GOOGLE_API_KEY", "k")


def ask(model: GeminiModel, *batches: list[str], embedding: Embedding = EMBEDDING) -> list[Any]:
    """Sends each batch once, through one client."""

    async def main() -> list[Any]:
        backend = GeminiEmbeddings(model, embedding)
        found: list[Any] = []
        for texts in batches:
            try:
                found.append(await backend.complete_batch([Prompt(text) for text in texts]))
            except RequestError as error:
                found.append(error)
        await backend.aclose()
        return found

    return asyncio.run(main())


@pytest.mark.parametrize(("name", "place", "method", "most"), WAYS)
def test_a_request_as_large_as_the_api_takes_is_answered(
    sandbox: Sandbox, name: str, place: dict[str, str], method: Method, most: int
) -> None:
    model = GeminiModel(name=name, base_url=sandbox.gemini_url, **place)
    assert GeminiEmbeddings(model, EMBEDDING).limits.max_instances == most
    texts = [f"text {number} ä漢" for number in range(most)]
    (replies,) = ask(model, texts)
    assert [reply.vector for reply in replies] == [vector(text, model=name, dimensions=5) for text in texts]
    assert {(reply.finish_reason, reply.tokens.output, reply.model) for reply in replies} == {("stop", 0, name)}
    (record,) = sandbox.requests
    assert (record.method, record.texts_sha256) == (method, tuple(map(prompt_sha256, texts)))


@pytest.mark.parametrize(("name", "place", "method", "most"), WAYS[:4])
def test_one_text_too_many_fails_with_the_message_of_the_server(
    sandbox: Sandbox, name: str, place: dict[str, str], method: Method, most: int
) -> None:
    model = GeminiModel(name=name, base_url=sandbox.gemini_url, **place)
    (error,) = ask(model, ["a"] * (most + 1))
    assert (error.kind, error.http_status) == ("bad_request", 400)
    assert str(most) in error.message


@pytest.mark.parametrize(("name", "place", "method", "most"), WAYS)
def test_google_genai_sends_the_same(name: str, place: dict[str, str], method: Method, most: int) -> None:
    requests: list[tuple[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append((request.url.path, json.loads(request.content)))
        return httpx.Response(200, json={})

    options = types.HttpOptions(httpx_client=httpx.Client(transport=httpx.MockTransport(answer)))
    access: dict[str, Any] = {"api_key": "k"}
    if place:
        access = {"vertexai": True, **place, "credentials": google_credentials.Credentials(token="t")}
    texts = ["a", "b"][:most]
    config = types.EmbedContentConfig(output_dimensionality=EMBEDDING.dimensions, task_type=EMBEDDING.task_type)
    with genai.Client(**access, http_options=options) as client:
        client.models.embed_content(
            model=name, contents=[types.Content(parts=[types.Part(text=text)]) for text in texts], config=config
        )
    ((path, theirs),) = requests
    backend = GeminiEmbeddings(GeminiModel(name=name, **place), EMBEDDING)
    assert backend._url.endswith(path)
    assert _plain(backend._method.body(texts)) == _plain(theirs)


def _plain(value: Any) -> Any:
    """Returns the body without roles, which google-genai does not need, and with the JSON names of protobuf."""
    if isinstance(value, dict):
        return {
            name.replace("task_type", "taskType"): _plain(inner) for name, inner in value.items() if name != "role"
        }
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


def test_only_parameters_that_are_set_are_sent() -> None:
    for name, place, *_ in WAYS:
        body = _method(GeminiModel(name=name, **place), Embedding()).body(["a"])
        assert "taskType" not in str(body)
        assert "task_type" not in str(body)
        assert "Dimensionality" not in str(body)


def test_vertex_ai_reports_tokens_and_truncation_of_each_text(sandbox: Sandbox) -> None:
    model = GeminiModel(name="text-embedding-005", base_url=sandbox.gemini_url, **VERTEX)
    (replies,) = ask(model, ["a" * 40, "b" * 4 * 2048, "c" * 4 * 2049])
    assert [(reply.tokens.input, reply.finish_reason) for reply in replies] == [
        (10, "stop"),
        (2048, "stop"),
        (2048, "truncated"),
    ]


def test_a_newer_model_on_vertex_ai_reports_them_too(sandbox: Sandbox) -> None:
    model = GeminiModel(name="gemini-embedding-2", base_url=sandbox.gemini_url, **VERTEX)
    (short,), (long,) = ask(model, ["a" * 40], ["c" * 4 * 2049])
    assert (short.tokens.input, short.finish_reason) == (10, "stop")
    assert (long.tokens.input, long.finish_reason) == (2048, "truncated")


def test_the_developer_api_reports_no_tokens_so_they_are_estimated(sandbox: Sandbox) -> None:
    model = GeminiModel(name="gemini-embedding-001", base_url=sandbox.gemini_url)
    (replies,) = ask(model, ["a" * 40, "b" * 4])
    assert [reply.tokens.input for reply in replies] == [10, 1]


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault(kind="garbage"), "garbage"),
        (Fault(kind="truncated"), "garbage"),
        (Fault(kind="drop"), "connection"),
        (Fault(kind="disconnect"), "connection"),
        (Fault(kind="rate-limit", retry_delay_seconds=1.25), "throttled"),
        (Fault(kind="error", http_status=503), "server_error"),
        (Fault(kind="error", http_status=400), "bad_request"),
    ],
    ids=lambda value: f"{value.kind}-{value.http_status}" if isinstance(value, Fault) else None,
)
@pytest.mark.parametrize(("name", "place", "method"), [WAYS[0][:3], WAYS[2][:3], WAYS[4][:3]])
def test_each_fault_has_its_kind_and_is_not_retried_by_the_backend(
    sandbox: Sandbox, name: str, place: dict[str, str], method: Method, fault: Fault, kind: str
) -> None:
    sandbox.faults.when(method, "unlucky", fault)
    _, error = ask(GeminiModel(name=name, base_url=sandbox.gemini_url, **place), ["hello"], ["unlucky"])
    assert isinstance(error, RequestError)
    assert error.kind == kind
    assert error.retry_after_seconds == (1.25 if kind == "throttled" else None)
    assert len(sandbox.requests) == 2


def test_a_server_that_does_not_listen_is_a_connection_error() -> None:
    (error,) = ask(GeminiModel(name="gemini-embedding-001", base_url="http://127.0.0.1:9"), ["a"])
    assert (error.kind, error.http_status) == ("connection", None)


@pytest.mark.parametrize("place", [{}, VERTEX])
def test_a_model_without_embeddings_fails_with_the_message_of_the_server(
    sandbox: Sandbox, place: dict[str, str]
) -> None:
    (error,) = ask(GeminiModel(name="gemini-2.5-flash", base_url=sandbox.gemini_url, **place), ["a"])
    assert error.kind == "not_found"


def test_without_key_and_project_there_is_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_API_KEY")
    with pytest.raises(JobSpecError, match="`GOOGLE_API_KEY`"):
        GeminiEmbeddings(GeminiModel(name="gemini-embedding-001"), EMBEDDING)


@pytest.mark.parametrize(
    ("way", "body"),
    [
        (0, {}),
        (0, {"embeddings": None}),
        (0, {"embeddings": [None]}),
        (0, {"embeddings": []}),
        (0, {"embeddings": [{"values": [1.0]}, {"values": [1.0]}]}),
        (2, {}),
        (2, {"predictions": [{}]}),
        (2, {"predictions": [{"embeddings": None}]}),
        (4, {}),
        (4, {"embedding": None}),
    ],
)
def test_a_200_without_one_vector_per_text_is_garbage(way: int, body: dict[str, Any]) -> None:
    name, place, *_ = WAYS[way]
    method = _method(GeminiModel(name=name, **place), EMBEDDING)
    with pytest.raises(RequestError) as caught:
        _replies(body, json.dumps(body).encode(), [Prompt("a")], method, name, UsageReader(name))
    assert (caught.value.kind, caught.value.http_status) == ("garbage", 200)


@pytest.mark.parametrize(
    ("way", "body"),
    [
        (0, {"embeddings": [{}]}),
        (2, {"predictions": [{"embeddings": {"values": "many"}}]}),
        (2, {"predictions": [{"embeddings": {"statistics": {"token_count": "many"}}}]}),
        (4, {"embedding": {"values": None}}),
    ],
)
def test_an_invalid_vector_is_left_to_the_parser(way: int, body: dict[str, Any]) -> None:
    name, place, *_ = WAYS[way]
    method = _method(GeminiModel(name=name, **place), EMBEDDING)
    (reply,) = _replies(body, json.dumps(body).encode(), [Prompt("a" * 40)], method, name, UsageReader(name))
    assert (reply.vector, reply.tokens.input) == (None, 10)


@pytest.mark.parametrize(("way", "is_news"), [(0, False), (2, True)], ids=["documents no usage", "documents one"])
def test_vectors_without_tokens_are_news_where_the_service_documents_them(
    way: int, is_news: bool, caplog: pytest.LogCaptureFixture
) -> None:
    name, place, *_ = WAYS[way]
    backend = GeminiEmbeddings(GeminiModel(name=name, **place), EMBEDDING)
    assert backend._usage.count(None, 7) == (7, 7)
    assert bool(caplog.messages) == is_news
