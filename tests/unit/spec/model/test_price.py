from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec import (
    EchoModel,
    GeminiModel,
    JobSpec,
    Limits,
    OpenAIModel,
    Price,
    VertexEndpointModel,
)
from airflow_provider_llmbeam.spec.model.list_price import _priority_ratio
from airflow_provider_llmbeam.spec.model.price import price_of

OWN = {"input_usd_per_million_tokens": 1.0, "output_usd_per_million_tokens": 4.0}
SERVER = OpenAIModel(type="openai", name="gemma")


def usd(model: str) -> tuple[float, float] | None:
    price = price_of(GeminiModel(name=model))
    return price and (price.input_usd_per_million_tokens, price.output_usd_per_million_tokens)


def test_a_cost_includes_input_and_output_tokens() -> None:
    assert Price(**OWN).cost_usd(2_000_000, 500_000) == 4.0


def test_cached_input_has_a_price_of_its_own() -> None:
    price = Price(**OWN, cached_input_usd_per_million_tokens=0.25)
    assert price.cost_usd(2_000_000, 0, cached_tokens=1_000_000) == 1.25
    assert Price(**OWN).cost_usd(2_000_000, 0, cached_tokens=1_000_000) == 2.0, "by default that of other input"


def test_audio_has_a_price_of_its_own() -> None:
    price = Price(**OWN, cached_input_usd_per_million_tokens=0.25, audio_input_usd_per_million_tokens=3.0)
    assert price.cost_usd(3_000_000, 0, cached_tokens=1_000_000, audio_tokens=500_000) == 1.5 + 0.25 + 1.5
    assert price.cost_usd(1_000_000, 0, audio_tokens=1_000_000, tier_ratio=0.5) == 1.5
    assert Price(**OWN).cost_usd(2_000_000, 0, audio_tokens=500_000) == 2.0, "by default that of other input"
    listed = price_of(GeminiModel(name="gemini-2.5-flash"))
    assert listed is not None
    assert listed.audio_input_usd_per_million_tokens == 1.0  # ai.google.dev/gemini-api/docs/pricing, 2026-10


def test_all_tokens_of_a_request_with_a_long_prompt_have_another_price() -> None:
    long = {**OWN, "input_usd_per_million_tokens": 2.0, "above_input_tokens": 200_000}
    price = Price.parse({**OWN, "long_prompts": long})
    assert price.cost_usd(200_000, 0) == 0.2
    assert price.cost_usd(200_001, 0) == 0.400002
    assert price.cost_usd(300_000, 0, cached_tokens=100_000) == 0.6


def test_the_price_of_a_request_is_that_of_its_date() -> None:
    """As of https://ai.google.dev/gemini-api/docs/pricing, 2026-10."""
    flash = GeminiModel(name="gemini-3.8-flash")
    now, later = (price_of(flash, at=datetime(year, 12, 31, 23, tzinfo=UTC)) for year in (2026, 2027))
    assert now is not None
    assert later is not None
    assert (now.input_usd_per_million_tokens, later.input_usd_per_million_tokens) == (0.75, 1.5)
    assert (now.output_usd_per_million_tokens, later.output_usd_per_million_tokens) == (3.75, 7.5)
    assert (now.cached_input_usd_per_million_tokens, later.cached_input_usd_per_million_tokens) == (0.075, 0.15)


def test_a_pro_model_costs_more_above_200_000_input_tokens() -> None:
    price = price_of(GeminiModel(name="gemini-2.5-pro"))
    assert price is not None
    assert price.cost_usd(200_000, 1_000_000) == pytest.approx(0.25 + 10)
    assert price.cost_usd(200_001, 1_000_000) == pytest.approx(0.5000025 + 15)
    assert price.cost_usd(1_000_000, 0, cached_tokens=1_000_000) == pytest.approx(0.25)


def test_a_model_of_openai_has_its_list_price_and_the_same_name_elsewhere_has_none() -> None:
    price = price_of(OpenAIModel(type="openai", name="gpt-4o-mini", base_url="https://api.openai.com/v1"))
    assert price is not None
    assert (price.input_usd_per_million_tokens, price.cached_input_usd_per_million_tokens) == (0.15, 0.075)
    assert price_of(OpenAIModel(type="openai", name="gpt-4o-mini", base_url="http://vllm:8000/v1")) is None


@pytest.mark.parametrize(
    ("model", "ratio"),
    [("gpt-5-mini", 1.8), ("gpt-5", 2.0), ("gpt-4o", 1.7), ("gpt-5.5", 2.5), ("gpt-4.1-mini-2025-04-14", 1.75)],
)
def test_the_list_has_the_priority_price_of_most_models_of_openai(model: str, ratio: float) -> None:
    """As of https://openai.com/api-priority-processing, 2026-11; gpt-5.5 has a price of long prompts, too."""
    price = price_of(OpenAIModel(type="openai", name=model, base_url="https://api.openai.com/v1"))
    assert price is not None
    assert price.priority_ratio == price.ratio_at("priority") == ratio
    assert (price.ratio_at("standard"), price.ratio_at("flex"), price.ratio_at("batch")) == (1.0, 0.5, 0.5)


@pytest.mark.parametrize("model", ["gemini-2.5-flash", "gemini-3.8-flash", "gemini-embedding-001"])
def test_the_list_has_no_priority_price_of_the_models_of_gemini(model: str) -> None:
    price = price_of(GeminiModel(name=model))
    assert price is not None
    assert price.priority_ratio is None


def test_one_ratio_for_all_tokens_is_the_priority_price_and_nothing_else() -> None:
    standard = {"input_mtok": Decimal(1), "output_mtok": Decimal(4), "cache_read_mtok": None}
    dearer = {"input_mtok": Decimal("1.8"), "output_mtok": Decimal("7.2"), "cache_read_mtok": None}
    assert _priority_ratio(standard, dearer) == 1.8
    assert _priority_ratio(standard, {**dearer, "output_mtok": Decimal(8)}) is None
    assert _priority_ratio(standard, standard) is None
    assert _priority_ratio({}, {}) is None


tokens = st.integers(0, 10**12)


@given(tokens, tokens, tokens, tokens)
def test_the_cost_of_a_sum_is_the_sum_of_the_costs(a: int, b: int, c: int, d: int) -> None:
    price = Price(**OWN)
    assert price.cost_usd(a + c, b + d) == pytest.approx(price.cost_usd(a, b) + price.cost_usd(c, d))


@pytest.mark.parametrize("field", OWN)
@pytest.mark.parametrize("value", [-0.1, "much", None, float("inf"), float("nan")])
def test_an_invalid_price_is_refused(field: str, value: Any) -> None:
    (problem,) = Price.problems({**OWN, field: value})
    assert problem.field == field


@pytest.mark.parametrize("ratio", [0.75, 0, -2.0, float("inf"), "dear"])
def test_a_surcharge_in_place_of_a_ratio_is_refused(ratio: Any) -> None:
    (problem,) = Price.problems({**OWN, "priority_ratio": ratio})
    assert problem.field == "priority_ratio"
    assert Price.parse({**OWN, "priority_ratio": 1.75}).ratio_at("priority") == 1.75


@pytest.mark.parametrize("field", OWN)
def test_a_price_needs_both_fields(field: str) -> None:
    (problem,) = Price.problems({name: value for name, value in OWN.items() if name != field})
    assert (problem.field, problem.want) == (field, "this field is needed")


@pytest.mark.parametrize(
    "version",
    [
        "gemini-2.5-flash",
        "gemini-2.5-flash-001",
        "gemini-2.5-flash-latest",
        "gemini-2.5-flash-preview-09-2025",
        "gemini-2.5-flash-exp-0827",
        "models/gemini-2.5-flash",
        "publishers/google/models/gemini-2.5-flash-001",
        "projects/p/locations/global/publishers/google/models/gemini-2.5-flash",
    ],
)
def test_a_version_costs_what_its_model_costs(version: str) -> None:
    assert usd(version) == (0.30, 2.50)


@pytest.mark.parametrize(
    ("model", "price"),
    [
        ("gemini-2.5-flash-lite", (0.10, 0.40)),
        ("gemini-2.5-flash-lite-preview-06-17", (0.10, 0.40)),
        ("gemini-3-flash-preview", (0.50, 3.00)),
        ("gemini-3.1-pro-preview", (2.00, 12.00)),
        ("gemini-flash-latest", (0.75, 3.75)),
        ("gemini-2.5-flash-preview-tts", (0.50, 10.00)),
        ("gemini-2.5-pro", (1.25, 10.00)),
        ("gemini-embedding-001", (0.15, 0.0)),
        ("gemini-embedding-2-preview", (0.20, 0.0)),
    ],
)
def test_each_model_has_its_own_price(model: str, price: tuple[float, float]) -> None:
    assert usd(model) == price


@pytest.mark.parametrize(
    "model",
    [
        "gemini-2.5",
        "gemini-2.5-flash-image",
        "gemini-2.5-flash-native-audio-preview-09-2025",
        "gemini-2.5-flash2",
        "my-gemini-2.5-flash",
        "projects/p/locations/us-central1/endpoints/123",
        "projects/p/locations/us-central1/models/gemini-2",
        "text-embedding-005",
    ],
)
def test_another_model_has_no_known_price(model: str) -> None:
    assert usd(model) is None


def test_an_echo_is_free_and_a_self_hosted_server_has_no_known_price() -> None:
    free = price_of(EchoModel(type="echo"))
    assert free is not None
    assert free.cost_usd(10**9, 10**9) == 0.0
    assert price_of(SERVER) is None
    endpoint = "projects/p/locations/us-central1/endpoints/1"
    assert price_of(VertexEndpointModel(type="vertex_endpoint", name="gemma", endpoint=endpoint)) is None


@pytest.mark.parametrize("model", [GeminiModel(), EchoModel(type="echo"), SERVER])
def test_the_value_of_the_user_takes_precedence(model: GeminiModel | EchoModel | OpenAIModel) -> None:
    assert price_of(model, Price(**OWN)) == Price(**OWN)


@pytest.mark.parametrize("budget_usd", [0, -1.0, float("inf")])
def test_a_budget_must_be_positive_and_finite(budget_usd: float) -> None:
    (problem,) = Limits.problems({"budget_usd": budget_usd})
    assert problem.field == "budget_usd"


def test_a_budget_needs_a_price(job) -> None:
    data = job(model=SERVER.model_dump(), limits={"budget_usd": 5})
    expected = (
        r"^`limits\.price`: this field is needed with `limits\.budget_usd`, as the price of openai model 'gemma' "
        r"is "
        r"not known, e\.g\. \{'input_usd_per_million_tokens': 0\.3, .* Nothing was sent or billed\.$"
    )
    with pytest.raises(JobSpecError, match=expected):
        JobSpec.parse(data)
    assert JobSpec.parse({**data, "limits": {"budget_usd": 5, "price": OWN}}).limits.price == Price(**OWN)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (
            {"state_uri": "s3://bucket/state"},
            r"^`state_uri`: must be on a disk or on Cloud Storage with `limits\.budget`",
        ),
        ({"state_uri": None, "sink": {"uri": "out"}}, r"^`state_uri`: this field is needed with `limits\.budget`"),
        ({"model": SERVER.model_dump()}, r"^`limits\.price`: this field is needed with `limits\.budget`"),
        ({"limits": {"budget": {"usd": 5, "over": "a/b"}}}, r"^`limits\.budget\.over`"),
        ({"limits": {"budget": {"usd": 0, "over": "month"}}}, r"^`limits\.budget\.usd`: must be greater than 0"),
        ({"limits": {"budget": {"usd": 5}}}, r"^`limits\.budget\.over`: this field is needed"),
    ],
)
def test_a_budget_that_runs_share_needs_a_price_and_a_place_for_its_ledger(job, changes, fault) -> None:
    data = job(model={"type": "gemini"}, state_uri="gs://b/s", limits={"budget": {"usd": 5, "over": "month"}})
    assert JobSpec.parse(data).paths.budget_uri == "gs://b/s/budgets/month.json"
    with pytest.raises(JobSpecError, match=fault):
        JobSpec.parse(data | changes)


def test_a_guard_has_no_part_of_its_own_in_a_budget_that_runs_share(job) -> None:
    guard = {"model": {"type": "echo"}, "limits": {"budget": {"usd": 5, "over": "month"}}}
    with pytest.raises(
        JobSpecError, match=r"`safety\.moderation\.limits\.budget`: belongs into the `limits` of the job"
    ):
        JobSpec.parse(job(safety={"moderation": guard}))


def test_a_budget_of_a_model_with_a_list_price_needs_nothing(job) -> None:
    spec = JobSpec.parse(job(model={"type": "gemini"}, limits={"budget_usd": 5}))
    assert JobSpec.from_json(spec.model_dump_json()) == spec
