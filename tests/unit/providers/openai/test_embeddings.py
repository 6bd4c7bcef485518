from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from llmbeam_sandbox import Fault, ModelSettings, Sandbox, prompt_sha256
from llmbeam_sandbox.models.embedding.base import vector

from airflow_provider_llmbeam.engine.backend import Reply
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.engine.token_counts import Tokens
from airflow_provider_llmbeam.providers.embeddings import NO_VECTORS
from airflow_provider_llmbeam.providers.openai.client import error_of
from airflow_provider_llmbeam.providers.openai.embeddings import OpenAIEmbeddings, _replies
from airflow_provider_llmbeam.providers.reported import UsageReader, json_object
from airflow_provider_llmbeam.spec import Embedding, OpenAIModel

METHOD = "openai.embeddings"
PROMPTS = [Prompt("a" * 40), Prompt("b" * 20)]


def replies(content: bytes, prompts: list[Prompt], model: str, usage: UsageReader) -> list[Reply]:
    return _replies(json_object(content, NO_VECTORS, error_of), content, prompts, model, usage)


def ask(base_url: str, *batches: list[str], embedding: Embedding | None = None) -> list[Any]:
    """Sends each batch once, through one client."""

    async def main() -> list[Any]:
        model = OpenAIModel(type="openai", name="nomic", base_url=base_url)
        backend = OpenAIEmbeddings(model, embedding or Embedding())
        found: list[Any] = []
        for texts in batches:
            try:
                found.append(await backend.complete_batch([Prompt(text) for text in texts]))
            except RequestError as error:
                found.append(error)
        await backend.aclose()
        return found

    return asyncio.run(main())


def body(*vectors: Any, **changes: Any) -> bytes:
    data = [{"object": "embedding", "index": index, "embedding": found} for index, found in enumerate(vectors)]
    usage = {"prompt_tokens": 30, "total_tokens": 30}
    return json.dumps({"data": data, "model": "nomic-1.5", "usage": usage, **changes}).encode()


def test_vectors_are_read_and_the_tokens_shared_out_by_length() -> None:
    assert replies(body([1.0, 0.5], [0.25, 0]), PROMPTS, "nomic", UsageReader("m")) == [
        Reply(text="", finish_reason="stop", tokens=Tokens(20), model="nomic-1.5", vector=[1.0, 0.5]),
        Reply(text="", finish_reason="stop", tokens=Tokens(10), model="nomic-1.5", vector=[0.25, 0]),
    ]


def test_each_vector_is_assigned_to_the_text_of_its_index() -> None:
    data = [{"index": 1, "embedding": [2.0]}, {"index": 0, "embedding": [1.0]}]
    assert [reply.vector for reply in replies(body(data=data), PROMPTS, "m", UsageReader("m"))] == [[1.0], [2.0]]


def test_vectors_without_an_index_are_assigned_in_order() -> None:
    data = [{"embedding": [1.0]}, {"embedding": [2.0]}]
    assert [reply.vector for reply in replies(body(data=data), PROMPTS, "m", UsageReader("m"))] == [[1.0], [2.0]]


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": None}, [1]])
def test_tokens_that_the_server_does_not_report_are_estimated(usage: Any) -> None:
    found = replies(body([1.0], [2.0], usage=usage, model=None), PROMPTS, "nomic", UsageReader("m"))
    assert [(reply.tokens.input, reply.model) for reply in found] == [(10, "nomic"), (5, "nomic")]


def test_an_invalid_vector_affects_only_its_text() -> None:
    assert [reply.vector for reply in replies(body(None, [1.0]), PROMPTS, "m", UsageReader("m"))] == [None, [1.0]]


@pytest.mark.parametrize(
    "content",
    [
        b"<html>",
        b"{}",
        b'{"data": null}',
        b'{"data": [null, null]}',
        body(),
        body([1.0]),
        body([1.0], [1.0], [1.0]),
        body(data=[{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [1.0]}]),
        body(data=[{"index": 1, "embedding": [1.0]}, {"index": 2, "embedding": [1.0]}]),
        body(data=[{"index": [0], "embedding": [1.0]}, {"index": 1, "embedding": [1.0]}]),
    ],
)
def test_a_200_without_one_vector_per_text_is_garbage(content: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        replies(content, PROMPTS, "m", UsageReader("m"))
    assert (caught.value.kind, caught.value.http_status) == ("garbage", 200)


def test_many_texts_are_embedded_by_one_request(sandbox: Sandbox) -> None:
    texts = ["How tall is it?", "ä漢😀", "x" * 100]
    (replies,) = ask(sandbox.openai_url, texts, embedding=Embedding(dimensions=5))
    assert [reply.vector for reply in replies] == [vector(text, model="nomic", dimensions=5) for text in texts]
    (record,) = sandbox.requests
    assert record.method == METHOD
    assert record.texts_sha256 == tuple(map(prompt_sha256, texts))
    assert sum(reply.tokens.input for reply in replies) == record.input_tokens


def test_dimensions_are_those_of_the_model_by_default(sandbox: Sandbox) -> None:
    ((reply,),) = ask(sandbox.openai_url, ["a"])
    assert len(reply.vector) == 768


def test_a_429_has_the_retry_delay(sandbox: Sandbox) -> None:
    sandbox.faults.queue(METHOD, Fault(kind="rate-limit", retry_delay_seconds=1.5))
    (error,) = ask(sandbox.openai_url, ["a", "b"])
    assert (error.kind, error.http_status, error.retry_after_seconds) == ("throttled", 429, 1.5)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault(kind="garbage"), "garbage"),
        (Fault(kind="garbage-json"), "garbage"),
        (Fault(kind="truncated"), "garbage"),
        (Fault(kind="drop"), "connection"),
        (Fault(kind="disconnect"), "connection"),
        (Fault(kind="error", http_status=503), "server_error"),
        (Fault(kind="error", http_status=413), "bad_request"),
        (Fault(kind="error", http_status=404), "not_found"),
    ],
    ids=lambda value: f"{value.kind}-{value.http_status}" if isinstance(value, Fault) else None,
)
def test_each_fault_has_its_kind_and_is_not_retried_by_the_backend(
    sandbox: Sandbox, fault: Fault, kind: str
) -> None:
    sandbox.faults.when(METHOD, "unlucky", fault)
    _, error = ask(sandbox.openai_url, ["hello"], ["hello", "unlucky"])
    assert isinstance(error, RequestError)
    assert error.kind == kind
    assert len(sandbox.requests) == 2


def test_a_server_that_does_not_listen_is_a_connection_error() -> None:
    (error,) = ask("http://127.0.0.1:9/v1", ["a"])
    assert (error.kind, error.http_status) == ("connection", None)


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with Sandbox(models=ModelSettings(openai_api_key="secret")) as guarded:
        (refused,) = ask(guarded.openai_url, ["a"])
        monkeypatch.setenv("OPENAI_API_KEY", "secret")
        (replies,) = ask(guarded.openai_url, ["a"])
    assert (refused.kind, refused.http_status) == ("unauthorized", 401)
    assert len(replies) == 1


def test_closing_a_client_that_never_sent_does_nothing() -> None:
    assert ask("http://127.0.0.1:9/v1") == []
