from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from google import genai
from google.genai import errors, types
from llmbeam_sandbox import ModelSettings, Sandbox
from llmbeam_sandbox.models.catalog import is_gemini, is_openai


@pytest.fixture
def strict():
    with Sandbox(models=ModelSettings(any_model=False)) as running:
        yield running


@pytest.mark.parametrize(
    "name",
    [
        "gemini-2.5-flash",
        "gemini-2.5-flash-preview-09-2025",
        "gemini-2.0-flash-001",
        "gemini-flash-latest",
        "gemma-3-4b-it",
    ],
)
def test_models_of_gemini_are_in_the_catalogue_in_all_their_versions(name: str) -> None:
    assert is_gemini(name)


@pytest.mark.parametrize("name", ["gemini-2.5-flsh", "gemini-9", "gpt-4o", "gemini-embedding-001", ""])
def test_other_names_are_no_models_of_gemini(name: str) -> None:
    assert not is_gemini(name)


@pytest.mark.parametrize("name", ["gpt-4o-mini", "gpt-4o-2024-08-06", "google/gemma-3-1b-it", "Qwen/Qwen3-4B"])
def test_models_of_openai_and_of_the_hub_are_in_the_catalogue(name: str) -> None:
    assert is_openai(name)


@pytest.mark.parametrize("name", ["gpt-4o-mni", "m", "text-embedding-3-small"])
def test_other_names_are_no_chat_models_of_openai(name: str) -> None:
    assert not is_openai(name)


def test_the_client_of_gemini_is_told_that_there_is_no_such_model(strict: Sandbox) -> None:
    client = genai.Client(api_key="any", http_options=types.HttpOptions(base_url=strict.gemini_url))
    with pytest.raises(
        errors.ClientError, match=r"models/gemini-2\.5-flsh is not found for API version v1beta"
    ) as caught:
        client.models.generate_content(model="gemini-2.5-flsh", contents="Hi")
    assert caught.value.code == 404
    assert client.models.generate_content(model="gemini-2.5-flash", contents="Hi").text
    client.close()


def test_the_client_of_openai_is_told_that_there_is_no_such_model(strict: Sandbox) -> None:
    with openai.OpenAI(base_url=strict.openai_url, api_key="any", max_retries=0) as client:
        with pytest.raises(openai.NotFoundError, match=r"The model `gpt-4o-mni` does not exist") as caught:
            client.chat.completions.create(model="gpt-4o-mni", messages=[{"role": "user", "content": "Hi"}])
        assert caught.value.code == "model_not_found"
        with pytest.raises(openai.NotFoundError):
            client.embeddings.create(model="gpt-4o", input="Hi")
        assert client.embeddings.create(model="text-embedding-3-small", input="Hi").data
    assert [record.is_billed for record in strict.requests] == [False, False, True]


@pytest.mark.parametrize(
    ("any_model", "statuses"), [(True, {200}), (False, {404})], ids=["--any-model", "the catalogue"]
)
def test_a_switch_lets_models_answer_that_no_service_has(any_model: bool, statuses: set[int]) -> None:
    chat: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    content = {"contents": [{"parts": [{"text": "Hi"}]}]}
    embedding = {"requests": [{"model": "models/my-embedding", "content": {"parts": [{"text": "Hi"}]}}]}
    with (
        Sandbox(models=ModelSettings(any_model=any_model)) as running,
        httpx.Client(base_url=running.url, headers={"x-goog-api-key": "any"}) as http,
    ):
        replies = [
            http.post("/v1/chat/completions", json=chat),
            http.post("/v1/embeddings", json={"model": "m", "input": "Hi"}),
            http.post("/v1beta/models/gemini-99:generateContent", json=content),
            http.post("/v1beta/models/my-embedding:batchEmbedContents", json=embedding),
        ]
    assert {reply.status_code for reply in replies} == statuses
