from __future__ import annotations

from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.token_counts import NO_TOKENS, Tokens
from airflow_provider_llmbeam.pipeline.measure.estimate.projection import input_share, mean_rates
from airflow_provider_llmbeam.spec import Price

PRICE = Price.parse(
    {
        "input_usd_per_million_tokens": 1.0,
        "output_usd_per_million_tokens": 8.0,
        "cached_input_usd_per_million_tokens": 0.1,
        "long_prompts": {
            "above_input_tokens": 200_000,
            "input_usd_per_million_tokens": 2.0,
            "output_usd_per_million_tokens": 12.0,
        },
    }
)
tokens = st.integers(0, 400_000)


def counted(input_tokens: int, output_tokens: int, cached_tokens: int) -> Tokens:
    return Tokens(input_tokens, output_tokens, cached=min(cached_tokens, input_tokens))


samples = st.lists(st.builds(counted, tokens, tokens, tokens), max_size=8)


@given(samples)
def test_a_sample_costs_the_same_at_its_mean_price(sample: list[Tokens]) -> None:
    cost = sum(PRICE.cost_usd(*each.priced) for each in sample)
    read, written, cached, *_ = reduce(Tokens.plus, sample, NO_TOKENS)
    assert read * input_share(sample, "cached") == pytest.approx(cached)
    assert mean_rates(PRICE, sample).cost_usd(read, written, cached) == pytest.approx(cost)


def test_without_a_sample_no_prompt_is_long_and_none_is_cached() -> None:
    assert mean_rates(PRICE, []).cost_usd(1_000_000, 1_000_000) == 9.0


def test_the_mean_price_has_that_of_cached_tokens() -> None:
    assert mean_rates(PRICE, [counted(1_000_000, 0, 0)]).cost_usd(1e6, 0, 1e6) == pytest.approx(0.2)
    assert mean_rates(PRICE, []).cost_usd(1e6, 0, 1e6) == pytest.approx(0.1)


def test_a_sample_with_audio_costs_the_same_at_its_mean_price() -> None:
    dear = PRICE.model_copy(update={"audio_input_usd_per_million_tokens": 3.0})
    sample = [Tokens(100_000, audio=50_000), Tokens(100_000)]
    assert (input_share(sample, "audio"), input_share([], "audio")) == (0.25, 0.0)
    assert mean_rates(dear, sample).cost_usd(1e6, 0, 0, 0.25e6) == pytest.approx(1.5)
    assert mean_rates(dear, []).cost_usd(1e6, 0) == pytest.approx(1.0)


def test_the_mean_price_keeps_the_ratio_of_the_priority_tier() -> None:
    dear = PRICE.model_copy(update={"priority_ratio": 1.8})
    assert (mean_rates(dear, []).priority_ratio, mean_rates(PRICE, []).priority_ratio) == (1.8, None)
