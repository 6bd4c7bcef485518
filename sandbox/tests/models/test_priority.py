"""The priority tier, asked for by Google's and OpenAI's own clients."""

from __future__ import annotations

import json

import pytest
from google import genai
from google.genai import types
from llmbeam_sandbox import ModelSettings, Sandbox, TokenPrice, TokenPrices
from openai import OpenAI

from tests.outcomes import answers_by_tier

HEADERS = {"X-Vertex-AI-LLM-Shared-Request-Type": "priority"}
FULL = ModelSettings(priority_overflow_ratio=1.0)


def developer(sandbox, tier="priority"):
    """Returns the tier that the reply reports."""
    client = genai.Client(api_key="k", http_options=types.HttpOptions(base_url=sandbox.gemini_url))
    config = types.GenerateContentConfig(service_tier=tier, should_return_http_response=True)
    reply = client.models.generate_content(model="gemini-2.5-flash", contents="How tall?", config=config)
    return json.loads(reply.sdk_http_response.body)["usageMetadata"]["serviceTier"]  # google-genai 2.34 drops it


def vertex(sandbox, project, location="global"):
    """Returns the traffic type that the reply reports."""
    options = types.HttpOptions(base_url=sandbox.gemini_url, headers=HEADERS)
    client = genai.Client(vertexai=True, project=project, location=location, http_options=options)
    reply = client.models.generate_content(model="gemini-2.5-flash", contents="How tall?")
    return reply.usage_metadata.traffic_type


def openai(sandbox, tier="priority", *, stream=False):
    """Returns the tiers that the reply, or each of its chunks, reports."""
    client = OpenAI(api_key="k", base_url=sandbox.openai_url)
    asked = {"model": "gpt-5-mini", "messages": [{"role": "user", "content": "How tall?"}], "service_tier": tier}
    if stream:
        return {chunk.service_tier for chunk in client.chat.completions.create(**asked, stream=True)}
    return {client.chat.completions.create(**asked).service_tier}


def test_a_priority_request_is_billed_at_the_ratio_of_its_price():
    prices = TokenPrices(default=TokenPrice(priority_ratio=2.5))
    with Sandbox(models=ModelSettings(prices=prices)) as sandbox:
        developer(sandbox)
        priority = sandbox.token_bill.nano_usd
        developer(sandbox, "standard")
        assert answers_by_tier(sandbox) == {"priority": 1, "standard": 1}
        assert sandbox.token_bill.nano_usd == priority * 1.4


def test_each_api_reports_the_tier_in_its_own_words(sandbox, google):
    assert developer(sandbox) == "priority"
    assert vertex(sandbox, google.project) == types.TrafficType.ON_DEMAND_PRIORITY
    assert openai(sandbox) == openai(sandbox, stream=True) == {"priority"}
    assert set(answers_by_tier(sandbox)) == {"priority"}


def test_above_the_limit_each_api_serves_at_the_standard_tier_and_says_so(google):
    with Sandbox(models=FULL) as sandbox:
        assert developer(sandbox) == "standard"
        assert vertex(sandbox, google.project) == types.TrafficType.ON_DEMAND
        assert openai(sandbox) == openai(sandbox, stream=True) == {"default"}
        assert set(answers_by_tier(sandbox)) == {"standard"}


def test_a_region_of_vertex_ai_ignores_the_header(sandbox, google):
    assert vertex(sandbox, google.project, "us-central1") == types.TrafficType.ON_DEMAND
    assert set(answers_by_tier(sandbox)) == {"standard"}


@pytest.mark.parametrize("ratio", [-0.1, 1.1])
def test_a_share_outside_of_0_to_1_is_refused(ratio):
    with pytest.raises(ValueError, match="priority_overflow_ratio"):
        ModelSettings(priority_overflow_ratio=ratio)
