"""Prompts of Gemini whose head the provider has cached."""

from __future__ import annotations

import asyncio

import pytest
from google import genai
from google.genai import types as genai_types
from llmbeam_sandbox import Fault

from airflow_provider_llmbeam.engine.prefix import CachedHead, PromptHead
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.providers.gemini.client import GeminiBackend, is_cache_gone
from airflow_provider_llmbeam.spec.model import GeminiModel, Generation

HEAD = PromptHead("word " * 4_800, "Be short.")  # 6,003 tokens
PROMPTS = [Prompt(f"{HEAD.text}Judge {number}.", HEAD.system) for number in range(3)]


@pytest.fixture
def caches(sandbox, monkeypatch):
    monkeypatch.setenv("GOOGLE_API_KEY", "k")
    with genai.Client(api_key="k", http_options=genai_types.HttpOptions(base_url=sandbox.url)) as client:
        yield client.caches


@pytest.fixture
def cached(caches):
    config = {"contents": HEAD.text, "system_instruction": HEAD.system, "ttl": "600s"}
    return CachedHead(caches.create(model=GeminiModel().name, config=config).name, HEAD)


def answers(sandbox, prompts, cached, **generation):
    async def ask():
        backend = GeminiBackend(GeminiModel(base_url=sandbox.gemini_url), Generation(**generation), None, cached)
        try:
            return [await backend.complete(prompt) for prompt in prompts]
        finally:
            await backend.aclose()

    return asyncio.run(ask())


@pytest.mark.parametrize("stream", [False, True])
def test_the_answers_are_equal_and_the_head_is_read_from_the_cache(sandbox, cached, stream):
    inline = answers(sandbox, PROMPTS, None)
    found = answers(sandbox, PROMPTS, cached, stream=stream)
    assert [reply.text for reply in found] == [reply.text for reply in inline]
    assert [reply.tokens.cached for reply in found] == [6_003] * 3
    assert sum(charge.cached_tokens for charge in sandbox.token_bill.charges) == 3 * 6_003


def test_after_the_cache_is_gone_each_prompt_is_sent_whole_and_paid_once(sandbox, caches, cached):
    caches.delete(name=cached.name)
    before = sum(charge.answers for charge in sandbox.token_bill.charges)
    found = answers(sandbox, PROMPTS, cached)
    assert [reply.tokens.cached for reply in found] == [0] * 3
    assert sum(charge.answers for charge in sandbox.token_bill.charges) - before == 3
    statuses = [record.http_status for record in sandbox.requests if "generateContent" in record.method]
    assert statuses == [403, 200, 200, 200]


def test_another_prompt_is_sent_whole_and_the_next_one_uses_the_cache(sandbox, cached):
    found = answers(sandbox, [Prompt("Something else."), PROMPTS[0]], cached)
    assert [reply.tokens.cached for reply in found] == [0, 6_003]


def test_a_server_error_is_no_reason_to_leave_the_cache(sandbox, cached):
    sandbox.faults.queue("gemini.generateContent", Fault(kind="error", http_status=503))
    with pytest.raises(RequestError) as raised:
        answers(sandbox, PROMPTS[:1], cached)
    assert raised.value.http_status == 503


@pytest.mark.parametrize(
    ("http_status", "message", "is_gone"),
    [
        (403, "CachedContent not found (or permission denied)", True),
        (404, "Not found: cached content metadata for 1.", True),
        (400, "Cache content 1 is expired.", True),
        (400, "Invalid value at 'temperature'", False),
        (429, "Resource exhausted", False),
    ],
)
def test_a_refused_cache_is_told_from_other_failures(http_status, message, is_gone):
    assert is_cache_gone(RequestError("bad_request", message, http_status=http_status)) is is_gone
