"""Whatever a server sends, a client returns a valid reply or an error with a kind that the server causes."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.backend import Reply, StaticBackend
from airflow_provider_llmbeam.engine.outcome import BEFORE_ANY_REQUEST
from airflow_provider_llmbeam.engine.output import VectorParser
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.providers.backends import open_backend
from airflow_provider_llmbeam.providers.reported import MAX_TOKENS
from airflow_provider_llmbeam.spec import Embedding, GeminiModel, Generation, OpenAIModel, VertexEndpointModel
from airflow_provider_llmbeam.spec.fields.failure_kind import FAILURE_KINDS
from tests.hostile import altered, encoded, examples
from tests.replying import Replying, raw

PROMPTS = [Prompt("hello"), Prompt("world " * 9)]
#: Kinds that a response can have; a defect of the client is `internal`.
KINDS = set(FAILURE_KINDS) - BEFORE_ANY_REQUEST - {"internal"}

CHAT: Any = {
    "model": "gemma",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}},
}
CHUNKS: Any = [
    {"model": "gemma", "choices": [{"delta": {"content": "Hi"}}]},
    {"choices": [{"delta": {"content": "."}, "finish_reason": "stop"}]},
    {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}},
]
GEMINI: Any = {
    "candidates": [{"content": {"role": "model", "parts": [{"text": "Hi."}]}, "finishReason": "STOP"}],
    "usageMetadata": {
        "promptTokenCount": 5,
        "candidatesTokenCount": 6,
        "thoughtsTokenCount": 7,
        "cachedContentTokenCount": 4,
    },
    "modelVersion": "gemini-2.5-flash-001",
}
BLOCKED: Any = {"promptFeedback": {"blockReason": "SAFETY", "blockReasonMessage": "No."}, "usageMetadata": {}}
PREDICTIONS: Any = {"predictions": [CHAT, {"text": "Hi.", "usage": {"prompt_tokens": 5}}]}
VECTORS: Any = {
    "data": [{"index": 0, "embedding": [0.5, 1]}, {"index": 1, "embedding": [0.25, 2]}],
    "model": "nomic",
    "usage": {"prompt_tokens": 5},
}
BATCH: Any = {"embeddings": [{"values": [0.5, 1]}, {"values": [0.25, 2]}]}
PREDICTED: Any = {
    "predictions": [
        {"embeddings": {"values": [0.5], "statistics": {"token_count": 2.0, "truncated": False}}},
        {"embeddings": {"values": [1.5], "statistics": {"token_count": 2}}},
    ]
}
CONTENT: Any = {"embedding": {"values": [0.5]}, "usageMetadata": {"promptTokenCount": 5}, "truncated": False}
ERROR: Any = {
    "error": {
        "code": 429,
        "message": "Quota exceeded",
        "status": "RESOURCE_EXHAUSTED",
        "details": [
            {"@type": "x/google.rpc.QuotaFailure", "violations": [{"quotaId": "PerMinute"}]},
            {"@type": "x/google.rpc.RetryInfo", "retryDelay": "38.5s"},
        ],
    }
}


def openai(url: str) -> OpenAIModel:
    return OpenAIModel(type="openai", name="m", base_url=f"{url}/v1")


def endpoint(url: str, request_format: Any) -> VertexEndpointModel:
    name = "projects/p/locations/us-central1/endpoints/1"
    return VertexEndpointModel(
        type="vertex_endpoint", name="m", endpoint=name, base_url=url, request_format=request_format
    )


#: Model, whether it streams and whether it embeds, and its valid bodies.
CLIENTS: dict[str, tuple[Any, bool, bool, list[Any]]] = {
    "openai": (openai, False, False, [CHAT]),
    "openai stream": (openai, True, False, [CHUNKS]),
    "gemini": (lambda url: GeminiModel(base_url=url), False, False, [GEMINI, BLOCKED]),
    "gemini stream": (lambda url: GeminiModel(base_url=url), True, False, [[GEMINI, GEMINI], [BLOCKED]]),
    "vertex chat": (lambda url: endpoint(url, "chat"), False, False, [CHAT]),
    "vertex instances": (lambda url: endpoint(url, "instances"), False, False, [PREDICTIONS]),
    "vertex raw": (lambda url: endpoint(url, "raw"), False, False, [CHAT, PREDICTIONS, {"text": ["Hi."]}]),
    "openai embeddings": (openai, False, True, [VECTORS]),
    "gemini batchEmbedContents": (lambda url: GeminiModel(base_url=url), False, True, [BATCH]),
    "gemini predict": (
        lambda url: GeminiModel(base_url=url, project="p", name="text-embedding-005"),
        False,
        True,
        [PREDICTED],
    ),
    "gemini embedContent": (
        lambda url: GeminiModel(base_url=url, project="p", name="gemini-embedding-2"),
        False,
        True,
        [CONTENT],
    ),
}


@st.composite
def contents(draw: st.DrawFn, bodies: list[Any], *, is_stream: bool) -> bytes:
    if draw(st.integers(0, 9)) == 0:
        return draw(
            st.binary(max_size=200) | st.sampled_from([b"[" * 10_000, b"data: {", b"\xff\xfe{", b"<html>"])
        )
    body = draw(altered(*bodies))
    if is_stream:
        chunks = body if isinstance(body, list) else [body]
        ends = st.sampled_from([b"\n\n", b"\r\n", b"\n:keep-alive\n", b""])
        return b"".join(b"data: " + encoded(chunk) + draw(ends) for chunk in chunks)
    content = encoded(body)
    return content[: draw(st.integers(0, len(content)))] if draw(st.integers(0, 19)) == 0 else content


@st.composite
def responses(draw: st.DrawFn, bodies: list[Any], *, is_stream: bool) -> bytes:
    status = draw(
        st.sampled_from([200, 200, 200, 200, 204, 206, 302, 304, 400, 401, 404, 408, 429, 500, 503, 599])
    )
    content = draw(contents(bodies, is_stream=is_stream) if status == 200 else contents([ERROR], is_stream=False))
    headers: dict[str, str] = {}
    if draw(st.integers(0, 3)) == 0:
        headers["Retry-After"] = draw(
            st.sampled_from(["nan", "inf", "-1", "1e999", "Fri, 99 Nov 20261 09:00:00 GMT", "\udcff", "9" * 500])
        )
    if draw(st.integers(0, 9)) == 0:
        headers["Content-Type"] = draw(
            st.sampled_from(["text/html; charset=nonsense", "\udcff", ";;", "a/b;c=\udcff"])
        )
    if status == 302:
        headers["Location"] = draw(st.sampled_from(["http://[", "\udcff", "/", "http://127.0.0.1:1/", ""]))
    match draw(st.integers(0, 19)):
        case 0:
            headers["Content-Encoding"] = draw(st.sampled_from(["gzip", "br", "\udcff"]))
        case 1:
            content = gzip.compress(content)[: draw(st.integers(0, 200))]
            headers["Content-Encoding"] = "gzip"
        case 2:
            headers["Content-Length"] = str(len(content) + draw(st.integers(-3, 3)))
        case 3:
            headers["Set-Cookie"] = draw(st.sampled_from(["a=b", "=;;", "\udcff"]))
    return raw(content, status, **headers)


def assert_is_valid(found: Any) -> None:
    if isinstance(found, RequestError):
        assert found.kind in KINDS, found
        assert len(found.message) <= 2000
        found.message.encode()
        str(found).encode()
        assert found.http_status is None or 100 <= found.http_status <= 999
        delay = found.retry_after_seconds
        assert delay is None or (math.isfinite(delay) and 0 <= delay <= 86_400)
    else:
        assert isinstance(found, Reply)
        found.text.encode()
        for name in (found.model, found.finish_reason):
            assert name.isprintable()
            assert 0 < len(name) <= 128
            name.encode()
        if found.vector is not None:
            try:
                assert all(map(math.isfinite, VectorParser(None).parse(found)))
            except RequestError as error:
                assert error.kind == "invalid_output"  # noqa: PT017 - one of two valid results
    for tokens in (found.tokens.input, found.tokens.output):
        assert type(tokens) is int
        assert 0 <= tokens <= 2 * MAX_TOKENS


@pytest.fixture(scope="module")
def replying() -> Iterator[Replying]:
    with Replying(lambda _: b"") as server:
        yield server


@pytest.fixture(autouse=True)
def _access(_no_keys: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    user = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
    key = tmp_path / "adc.json"
    key.write_text(json.dumps(user | {"token": "t", "expiry": "2199-01-01T00:00:00Z", "quota_project_id": "p"}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    monkeypatch.setenv("GOOGLE_API_KEY", "k")


def ask(name: str, url: str) -> list[Any]:
    model, is_stream, is_embedding, _ = CLIENTS[name]

    async def main() -> list[Any]:
        backend = open_backend(
            model(url), Generation(stream=is_stream), None, Embedding() if is_embedding else None
        )
        takes_two = isinstance(backend, StaticBackend) and name != "gemini embedContent"
        try:
            if takes_two:
                return list(await backend.complete_batch(PROMPTS))
            return [await backend.complete(PROMPTS[0])]
        except RequestError as error:
            return [error]
        finally:
            await backend.aclose()

    return asyncio.run(main())


@pytest.mark.parametrize("name", CLIENTS)
def test_a_valid_response_is_an_answer(replying: Replying, name: str) -> None:
    """Otherwise the next test might alter bodies that no client accepts."""
    _, is_stream, is_embedding, bodies = CLIENTS[name]
    body = bodies[0]
    content = b"".join(b"data: " + encoded(chunk) + b"\n\n" for chunk in body) if is_stream else encoded(body)
    replying.answer = lambda _: raw(content)
    for found in ask(name, replying.url):
        assert isinstance(found, Reply), found
        assert bool(found.vector) is is_embedding
        assert bool(found.text) is not is_embedding


@pytest.mark.fuzz
@pytest.mark.parametrize("name", CLIENTS)
@examples(0.2)
@given(data=st.data())
def test_any_response_is_a_valid_reply_or_an_error_of_the_server(replying: Replying, name: str, data: Any) -> None:
    _, is_stream, _, bodies = CLIENTS[name]
    response = data.draw(responses(bodies, is_stream=is_stream))
    replying.answer = lambda _: response
    for found in ask(name, replying.url):
        assert_is_valid(found)


@pytest.mark.fuzz
@examples(0.5)
@given(name=st.sampled_from(sorted(CLIENTS)), data=st.data())
def test_a_response_with_damage_anywhere_and_in_any_pieces_is_a_reply_or_an_error(
    replying: Replying, name: str, data: Any
) -> None:
    _, is_stream, _, bodies = CLIENTS[name]
    response = data.draw(responses(bodies, is_stream=is_stream))
    first, last = sorted(data.draw(st.tuples(*[st.integers(0, len(response))] * 2)))
    noise = data.draw(
        st.binary(max_size=9) | st.sampled_from([b"\r\n", b"\r\n\r\n", b"\n", b"\0", b"HTTP/1.1 100 x"])
    )
    pieces = data.draw(
        st.sampled_from([[response[:first], response[last:]], [response[:first], noise, response[last:]]])
    )
    replying.answer = lambda _: iter(pieces)
    for found in ask(name, replying.url):
        assert_is_valid(found)


@pytest.mark.parametrize("name", ["openai", "openai stream", "gemini", "gemini stream", "vertex raw"])
def test_half_an_emoji_in_an_answer_is_replaced(replying: Replying, name: str) -> None:
    _, is_stream, _, (body, *_) = CLIENTS[name]
    chunks = body if is_stream else [body]
    content = b"".join((b"data: " if is_stream else b"") + encoded(chunk) + b"\n" for chunk in chunks)
    replying.answer = lambda _: raw(content.replace(b"Hi", b"cut \\ud83d"))
    (reply,) = ask(name, replying.url)
    assert isinstance(reply, Reply), reply
    assert reply.text.startswith("cut \ufffd")


@pytest.mark.parametrize("name", ["openai stream", "gemini stream"])
def test_an_emoji_that_two_chunks_share_is_whole(replying: Replying, name: str) -> None:
    chunks = {
        "openai stream": [
            {"choices": [{"delta": {"content": "\ud83d"}}]},
            {"choices": [{"delta": {"content": "\ude00"}, "finish_reason": "stop"}]},
        ],
        "gemini stream": [
            {"candidates": [{"content": {"parts": [{"text": "\ud83d"}]}}]},
            {"candidates": [{"content": {"parts": [{"text": "\ude00"}]}, "finishReason": "STOP"}]},
        ],
    }[name]
    replying.answer = lambda _: raw(b"".join(b"data: " + encoded(chunk) + b"\n\n" for chunk in chunks))
    (reply,) = ask(name, replying.url)
    assert isinstance(reply, Reply), reply
    assert reply.text == "😀"
