from __future__ import annotations

import httpx
import pytest
from llmbeam_sandbox import ModelSettings, Quota, Sandbox
from llmbeam_sandbox.models.answers import count_tokens

PROMPT = "one two three four five six seven eight nine ten"
GEMINI = "/v1beta/models/gemini-2.5-flash"


def words(text: str) -> int:
    return len(text.split())


@pytest.fixture
def http():
    with (
        Sandbox(models=ModelSettings(tokenizer=words)) as cloud,
        httpx.Client(base_url=cloud.url, headers={"x-goog-api-key": "k"}) as http,
    ):
        yield http


def gemini(http: httpx.Client, **config: object) -> dict:
    body = {"contents": [{"parts": [{"text": PROMPT}]}], "generationConfig": config}
    reply: dict = http.post(f"{GEMINI}:generateContent", json=body).json()
    return reply


def test_gemini_counts_with_the_configured_tokenizer(http) -> None:
    reply = gemini(http)
    (part,) = reply["candidates"][0]["content"]["parts"]
    usage = reply["usageMetadata"]
    assert (usage["promptTokenCount"], usage["candidatesTokenCount"]) == (10, words(part["text"]))
    body = {"contents": [{"parts": [{"text": PROMPT}]}]}
    assert http.post(f"{GEMINI}:countTokens", json=body).json()["totalTokens"] == 10


def test_an_answer_is_truncated_with_the_configured_tokenizer(http) -> None:
    reply = gemini(http, maxOutputTokens=3)
    (part,) = reply["candidates"][0]["content"]["parts"]
    assert part["text"].split() == ["one", "two", "three"]
    assert reply["candidates"][0]["finishReason"] == "MAX_TOKENS"
    assert reply["usageMetadata"]["candidatesTokenCount"] == 3


def test_openai_counts_with_the_configured_tokenizer(http) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": PROMPT}]}
    reply = http.post("/v1/chat/completions", json=body).json()
    answered = words(reply["choices"][0]["message"]["content"])
    assert reply["usage"] == {"prompt_tokens": 10, "completion_tokens": answered, "total_tokens": 10 + answered}
    embedded = http.post("/v1/embeddings", json={"model": "m", "input": [PROMPT, "one"]}).json()
    assert embedded["usage"]["prompt_tokens"] == 11


def test_the_quota_counts_with_the_configured_tokenizer() -> None:
    body = {"contents": [{"parts": [{"text": PROMPT}]}]}
    with Sandbox(
        models=ModelSettings(tokenizer=lambda text: 1000 * words(text), quota=Quota(tokens_per_minute=60_000))
    ) as cloud:
        found = [
            httpx.post(
                f"{cloud.url}{GEMINI}:generateContent", json=body, headers={"x-goog-api-key": "k"}
            ).status_code
            for _ in range(2)
        ]
    assert found == [200, 429]


def test_another_sandbox_and_this_process_count_with_the_default_tokenizer(http) -> None:
    gemini(http)
    assert count_tokens(PROMPT) == 12
    with Sandbox() as cloud, httpx.Client(base_url=cloud.url, headers={"x-goog-api-key": "k"}) as other:
        assert gemini(other)["usageMetadata"]["promptTokenCount"] == 12
