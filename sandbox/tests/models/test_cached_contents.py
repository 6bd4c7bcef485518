"""Explicit caches of Gemini, with the client of a user."""

from __future__ import annotations

import httpx
import pytest
from google import genai
from google.genai import types
from google.genai.errors import ClientError
from llmbeam_sandbox import ManualClock, Sandbox

MODEL = "gemini-2.5-flash"
HEAD = "word " * 2_400  # 3,000 tokens


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def server(clock):
    with Sandbox(clock=clock) as sandbox:
        yield sandbox


@pytest.fixture
def client(server):
    return genai.Client(api_key="k", http_options=types.HttpOptions(base_url=server.url))


def create(client, ttl="600s", **config):
    return client.caches.create(
        model=MODEL, config={"contents": HEAD, "display_name": "head", "ttl": ttl, **config}
    )


def ask(client, cache, model=MODEL, **config):
    return client.models.generate_content(
        model=model, contents="Judge it.", config={"cached_content": cache.name, **config}
    )


def test_cached_tokens_cost_a_tenth_and_the_answer_is_that_of_the_whole_prompt(client, server):
    cache = create(client)
    answer = ask(client, cache)
    assert cache.usage_metadata.total_token_count == answer.usage_metadata.cached_content_token_count == 3_000
    assert answer.text == client.models.generate_content(model=MODEL, contents=f"{HEAD}Judge it.").text
    (charge,) = server.token_bill.charges
    assert (charge.answers, charge.cached_tokens) == (2, 3_000)


def test_storage_is_billed_until_the_cache_is_deleted(client, server, clock):
    cache = create(client)
    clock.advance(360)
    client.caches.delete(name=cache.name)
    clock.advance(3600)
    assert server.token_bill.storage_nano_usd() == 3_000 * 1_000 * 0.1
    assert list(client.caches.list()) == []


def test_a_cache_lives_until_its_ttl_which_can_be_renewed(client, server, clock):
    cache = create(client)
    clock.advance(500)
    client.caches.update(name=cache.name, config={"ttl": "600s"})
    clock.advance(500)
    assert [each.display_name for each in client.caches.list()] == ["head"]
    clock.advance(100)
    with pytest.raises(ClientError, match=r"403.*not found"):
        ask(client, cache)
    assert server.token_bill.storage_nano_usd() == pytest.approx(3_000 * 1_000 * 1100 / 3600, abs=1)


def test_a_cache_below_the_minimum_is_refused(client):
    with pytest.raises(ClientError, match=r"400.*too small.*min_total_token_count=2048"):
        create(client, contents="short")


def test_a_request_with_a_cache_and_a_system_instruction_is_refused(client):
    with pytest.raises(ClientError, match=r"400.*can not be used with GenerateContent"):
        ask(client, create(client), system_instruction="Be short.")


def test_a_cache_of_another_model_is_refused(client):
    with pytest.raises(ClientError, match=r"400.*has to be the same"):
        ask(client, create(client), model="gemini-2.5-pro")


def test_a_ttl_that_is_no_duration_is_refused(client):
    with pytest.raises(ClientError, match=r"400.*must be a duration"):
        create(client, ttl="0s")


def test_a_cache_of_vertex_ai_is_found_again_by_its_display_name(server):
    parent = f"{server.url}/v1beta1/projects/p/locations/global"
    headers = {"Authorization": "Bearer t"}
    body = {
        "model": f"projects/p/locations/global/publishers/google/models/{MODEL}",
        "contents": [{"role": "user", "parts": [{"text": HEAD}]}],
        "displayName": "head",
    }
    with httpx.Client(trust_env=False, headers=headers) as http:
        made = http.post(f"{parent}/cachedContents", json=body).json()
        assert http.get(f"{parent}/cachedContents").json()["cachedContents"] == [made]
        assert http.delete(f"{server.url}/v1beta1/{made['name']}").status_code == 200
        assert http.get(f"{server.url}/v1beta1/{made['name']}").status_code == 404
        assert http.post(f"{parent}/cachedContents", json={**body, "model": MODEL}).status_code == 400
    assert httpx.get(f"{parent}/cachedContents", trust_env=False).status_code == 401
