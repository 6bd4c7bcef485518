from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.backend import StaticBackend
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.engine.tokens import estimate_tokens
from airflow_provider_llmbeam.providers.backends import open_backend
from airflow_provider_llmbeam.providers.echo.embeddings import EchoEmbeddings
from airflow_provider_llmbeam.providers.embeddings import NO_VECTORS, share_tokens, vector_reply
from airflow_provider_llmbeam.providers.gemini.embeddings import GeminiEmbeddings
from airflow_provider_llmbeam.providers.openai.client import error_of
from airflow_provider_llmbeam.providers.openai.embeddings import OpenAIEmbeddings
from airflow_provider_llmbeam.providers.reported import json_object
from airflow_provider_llmbeam.spec import EchoModel, Embedding, GeminiModel, Generation, Model, OpenAIModel

texts = st.lists(st.text(max_size=50).map(Prompt), min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("model", "backend"),
    [
        (EchoModel(type="echo"), EchoEmbeddings),
        (OpenAIModel(type="openai", name="m"), OpenAIEmbeddings),
        (GeminiModel(name="gemini-embedding-001"), GeminiEmbeddings),
    ],
    ids=["echo", "openai", "gemini"],
)
def test_each_model_has_a_backend_that_embeds_many_texts_per_request(
    monkeypatch: pytest.MonkeyPatch, model: Model, backend: type
) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "k")
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    opened = open_backend(model, Generation(), None, Embedding())
    assert isinstance(opened, backend)
    assert isinstance(opened, StaticBackend)
    asyncio.run(opened.aclose())


@given(st.integers(1, 10**9), texts)
def test_shares_add_up_to_the_total_and_follow_the_lengths(total: int, prompts: list[Prompt]) -> None:
    shares = share_tokens(total, prompts)
    estimates = [estimate_tokens(prompt.text) for prompt in prompts]
    assert sum(shares) == total
    for share, estimate in zip(shares, estimates, strict=True):
        assert abs(share - total * estimate / sum(estimates)) < 1


@given(texts)
def test_without_a_total_the_shares_are_estimates(prompts: list[Prompt]) -> None:
    assert share_tokens(None, prompts) == [estimate_tokens(prompt.text) for prompt in prompts]


@pytest.mark.parametrize("content", [b"", b"<html>", b"null", b"[]", b'"a"', b"\xff", b"[" * 100_000])
def test_a_200_that_is_no_object_is_garbage(content: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        json_object(content, NO_VECTORS, error_of)
    assert (caught.value.kind, caught.value.http_status) == ("garbage", 200)


@pytest.mark.parametrize("vector", [None, "AACAPw==", {"0": 1.0}])
def test_a_value_that_is_not_a_list_is_no_vector(vector: object) -> None:
    assert vector_reply(vector, input_tokens=1, model="m").vector is None


def test_a_truncated_text_has_its_finish_reason() -> None:
    assert vector_reply([1.0], input_tokens=1, model="m").finish_reason == "stop"
    assert vector_reply([1.0], input_tokens=1, model="m", is_truncated=True).finish_reason == "truncated"


def embed(embedding: Embedding, *prompts: str, latency_seconds: float = 0) -> list[list[float]]:
    backend = EchoEmbeddings(EchoModel(type="echo", latency_seconds=latency_seconds), embedding)
    replies = asyncio.run(backend.complete_batch([Prompt(text) for text in prompts]))
    return [list(reply.vector or ()) for reply in replies]


def test_an_echo_draws_its_vector_from_the_text() -> None:
    first, second, again = embed(Embedding(), "a", "b", "a")
    assert first == again != second
    assert [len(first), len(second)] == [8, 8]
    assert all(-1 <= number < 1 for number in first)
    assert embed(Embedding(task_type="CLUSTERING"), "a") != [first]


@pytest.mark.parametrize("dimensions", [1, 3, 1536])
def test_an_echo_vector_has_the_requested_dimensions(dimensions: int) -> None:
    (vector,) = embed(Embedding(dimensions=dimensions), "half an emoji \ud83d", latency_seconds=0.001)
    assert len(vector) == dimensions
    assert all(map(math.isfinite, vector))


def test_one_text_is_embedded_like_many() -> None:
    backend = EchoEmbeddings(EchoModel(type="echo", name="parrot"), Embedding())
    one = asyncio.run(backend.complete(Prompt("hello, hello!")))
    assert [one] == asyncio.run(backend.complete_batch([Prompt("hello, hello!")]))
    assert (one.text, one.tokens.input, one.tokens.output, one.model) == ("", 3, 0, "parrot")
