from __future__ import annotations

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
from airflow_provider_llmbeam.spec.model.price import price_of

OWN = {"input_usd_per_million_tokens": 1.0, "output_usd_per_million_tokens": 4.0}
SERVER = OpenAIModel(type="openai", name="gemma")


def usd(model: str) -> tuple[float, float] | None:
    price = price_of(GeminiModel(name=model))
    return price and (price.input_usd_per_million_tokens, price.output_usd_per_million_tokens)


def test_a_cost_includes_input_and_output_tokens() -> None:
    assert Price(**OWN).cost_usd(2_000_000, 500_000) == 4.0


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
        "gemini-2.5-flash-preview",
        "gemini-2.5-flash-preview-05-20",
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
        "gemini-2.5-flash-preview-tts",
        "gemini-2.5-flash-native-audio-preview-09-2025",
        "gemini-2.5-flash2",
        "my-gemini-2.5-flash",
        "projects/p/locations/us-central1/endpoints/123",
        "projects/p/locations/us-central1/models/gemini-2",
        "text-embedding-005",
        "gemini-flash-latest",
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
        r"^`spec`: has `limits\.budget_usd`, and the price of openai model 'gemma' is not known: set "
        r"`limits\.price`, e\.g\. \{'input_usd_per_million_tokens': 0\.3, .* Nothing was sent or billed\.$"
    )
    with pytest.raises(JobSpecError, match=expected):
        JobSpec.parse(data)
    assert JobSpec.parse({**data, "limits": {"budget_usd": 5, "price": OWN}}).limits.price == Price(**OWN)


def test_a_budget_of_a_model_with_a_list_price_needs_nothing(job) -> None:
    spec = JobSpec.parse(job(model={"type": "gemini"}, limits={"budget_usd": 5}))
    assert JobSpec.from_json(spec.model_dump_json()) == spec
