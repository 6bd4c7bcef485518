"""The flex tier, asked for by Google's own client."""

from __future__ import annotations

import pytest
from google import genai
from google.genai import errors, types
from llmbeam_sandbox import ModelSettings, Sandbox

from tests.outcomes import answers_by_tier


def ask(sandbox, tier="flex"):
    options = types.HttpOptions(
        base_url=sandbox.gemini_url, timeout=60_000, retry_options=types.HttpRetryOptions(attempts=1)
    )
    client = genai.Client(api_key="k", http_options=options)
    config = types.GenerateContentConfig(service_tier=tier)
    return client.models.generate_content(model="gemini-2.5-flash", contents="How tall?", config=config)


def test_a_flex_request_is_billed_at_half_the_price(sandbox):
    ask(sandbox)
    flex = sandbox.token_bill.nano_usd
    ask(sandbox, "standard")
    assert answers_by_tier(sandbox) == {"flex": 1, "standard": 1}
    assert sandbox.token_bill.nano_usd == 3 * flex


def test_a_share_of_the_flex_requests_is_shed_unbilled():
    with Sandbox(models=ModelSettings(flex_shed_ratio=1.0)) as sandbox:
        with pytest.raises(errors.ServerError, match="overloaded") as raised:
            ask(sandbox)
        assert raised.value.code == 503
        ask(sandbox, "standard")
        assert answers_by_tier(sandbox) == {"standard": 1}
        assert [request.limit_name for request in sandbox.requests] == ["flex", ""]


def test_without_the_tier_flex_requests_are_served_and_billed_as_standard_ones():
    with Sandbox(models=ModelSettings(has_flex=False)) as sandbox:
        ask(sandbox)
        assert answers_by_tier(sandbox) == {"standard": 1}


@pytest.mark.parametrize("ratio", [-0.1, 1.1])
def test_a_share_outside_of_0_to_1_is_refused(ratio):
    with pytest.raises(ValueError, match="flex_shed_ratio"):
        ModelSettings(flex_shed_ratio=ratio)
