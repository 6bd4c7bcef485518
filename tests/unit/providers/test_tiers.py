"""The service tier in requests and replies of each API."""

from __future__ import annotations

import asyncio

import pytest
from google.genai.types import TrafficType
from hypothesis import given
from hypothesis import strategies as st
from llmbeam_sandbox import ModelSettings, Sandbox

from airflow_provider_llmbeam.engine.bill import Bill
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.engine.token_counts import Tokens
from airflow_provider_llmbeam.providers.backends import open_backend
from airflow_provider_llmbeam.providers.reported import UsageReader, tier_of
from airflow_provider_llmbeam.spec import GeminiModel, Generation, OpenAIModel
from airflow_provider_llmbeam.spec.model.price import Price
from airflow_provider_llmbeam.spec.model.tier import SERVICE_TIERS


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("GOOGLE_API_KEY", "a-key")


def reply_of(model, *, stream=False, **options):
    async def main():
        backend = open_backend(model, Generation(stream=stream), None, **options)
        try:
            return await backend.complete(Prompt("How tall?"))
        finally:
            await backend.aclose()

    return asyncio.run(main())


@pytest.fixture(params=["developer", "vertex", "openai"])
def model(request, sandbox):
    match request.param:
        case "developer":
            return GeminiModel(base_url=sandbox.gemini_url)
        case "vertex":
            return GeminiModel(base_url=sandbox.gemini_url, project=request.getfixturevalue("google").project)
        case _:
            return OpenAIModel(type="openai", name="gpt-5-mini", base_url=sandbox.openai_url)


def test_a_request_for_flex_is_served_there(model, sandbox):
    assert reply_of(model, asked_tier="flex").service_tier == "flex"
    assert reply_of(model).service_tier == "standard"
    assert [charge.tier for charge in sandbox.token_bill.charges] == ["flex", "standard"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_for_priority_is_served_there_also_as_a_stream(model, stream, sandbox):
    assert reply_of(model, asked_tier="priority", stream=stream).service_tier == "priority"
    assert reply_of(model, stream=stream).service_tier == "standard"
    assert [charge.tier for charge in sandbox.token_bill.charges] == ["priority", "standard"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tier", ["flex", "priority"])
def test_the_first_reply_of_another_tier_is_named_in_the_log(tier, stream, caplog):
    settings = ModelSettings(has_flex=False, priority_overflow_ratio=1.0)
    with Sandbox(models=settings) as sandbox:
        model = OpenAIModel(type="openai", name="gpt-5-mini", base_url=sandbox.openai_url)
        assert reply_of(model, asked_tier=tier, stream=stream).service_tier == "standard"
        assert reply_of(model, stream=stream).service_tier == "standard"
    (warning,) = caplog.messages
    assert warning.startswith(f"A request for the {tier} tier was served at the tier 'standard'")


def test_a_reader_warns_once_and_without_an_asked_tier_never(caplog):
    for asked in (None, "priority"):
        reader = UsageReader("m", asked)
        for reported in ("priority", "default", "flex", None):
            reader.tier(reported)
    assert len(caplog.messages) == 1


def test_a_region_of_vertex_ai_serves_at_the_standard_tier_and_the_reply_says_so(sandbox, google):
    model = GeminiModel(base_url=sandbox.gemini_url, project=google.project, location="us-central1")
    for tier in ("flex", "priority"):
        assert reply_of(model, asked_tier=tier).service_tier == "standard"
    assert [charge.tier for charge in sandbox.token_bill.charges] == ["standard"]


def test_a_server_without_flex_is_believed():
    with Sandbox(models=ModelSettings(has_flex=False)) as sandbox:
        assert reply_of(GeminiModel(base_url=sandbox.gemini_url), asked_tier="flex").service_tier == "standard"


@pytest.mark.parametrize(
    ("reported", "tier"),
    [
        ("flex", "flex"),
        ("FLEX", "flex"),
        ("ON_DEMAND_FLEX", "flex"),
        ("ON_DEMAND_PRIORITY", "priority"),
        ("fast", "priority"),
        ("ON_DEMAND", "standard"),
        ("PROVISIONED_THROUGHPUT", "provisioned"),
        ("ON_DEMAND_OFFPEAK", "off_peak"),
        ("default", "standard"),
        (None, "standard"),
    ],
)
def test_the_names_of_the_tiers(reported, tier):
    assert tier_of(reported) == tier


@pytest.mark.parametrize(("asked", "tier"), [("priority", "priority"), ("flex", "standard"), (None, "standard")])
def test_a_reply_without_a_tier_costs_the_dearer_one_of_those_it_may_have(asked, tier):
    """A proxy may leave the field out."""
    assert UsageReader("m", asked).tier(None) == tier


@given(st.recursive(st.none() | st.text() | st.floats() | st.booleans(), st.lists))
def test_whatever_a_server_reports_is_a_tier(reported):
    assert tier_of(reported) in SERVICE_TIERS


def test_each_traffic_type_of_googles_client_is_a_tier_that_counts_apart():
    """`ON_DEMAND` is the standard one."""
    known = {kind.value: tier_of(kind.value) for kind in TrafficType}
    assert {name for name, tier in known.items() if tier == "standard"} == {
        "TRAFFIC_TYPE_UNSPECIFIED",
        "ON_DEMAND",
    }


@pytest.fixture
def provisioned(sandbox, google):
    """A model with room for one request a minute in Provisioned Throughput."""
    sandbox.monitoring.provision("gemini-2.5-flash", tokens_per_second=1)
    return GeminiModel(name="gemini-2.5-flash", base_url=sandbox.gemini_url, project=google.project)


def long_reply(model, tier):
    async def main():
        backend = open_backend(model, Generation(max_output_tokens=5), None, asked_tier=tier)
        try:
            return (await backend.complete(Prompt("a" * 200))).service_tier
        except RequestError as error:
            return error.http_status
        finally:
            await backend.aclose()

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("tier", "served"),
    [
        ("standard", ["provisioned", "standard"]),
        ("priority", ["provisioned", "priority"]),
        ("flex", ["flex", "flex"]),
        ("provisioned", ["provisioned", 429]),
        ("provisioned_then_flex", ["provisioned", "flex"]),
    ],
)
def test_provisioned_throughput_is_used_first_alone_or_not_as_the_tier_says(tier, served, provisioned, caplog):
    assert [long_reply(provisioned, tier) for _ in range(2)] == served
    assert caplog.messages == []


def test_what_is_prepaid_costs_nothing_and_the_bill_agrees():
    price = Price(input_usd_per_million_tokens=1.0, output_usd_per_million_tokens=2.0)
    assert Bill.of(Tokens(1000, 100, 500), price, "provisioned").cost_nano_usd == 0
    assert Bill.of(Tokens(1000, 100), price, "off_peak") == Bill.of(Tokens(1000, 100), price)
