from __future__ import annotations

import pytest

from airflow_provider_llmbeam.engine.bill import NOTHING, Bill, paid_for
from airflow_provider_llmbeam.engine.outcome import Failure
from airflow_provider_llmbeam.engine.token_counts import NO_TOKENS, Tokens
from airflow_provider_llmbeam.spec import Price

PRICE = Price(
    input_usd_per_million_tokens=1.0, output_usd_per_million_tokens=10.0, cached_input_usd_per_million_tokens=0.1
)
BILL = Bill(Tokens(10, 2, 3, 4), 100)


@pytest.mark.parametrize(("tier", "ratio"), [("standard", 1.0), ("flex", 0.5), ("batch", 0.5)])
def test_tokens_cost_what_they_cost_at_the_tier_that_served_them(tier, ratio):
    assert Bill.of(Tokens(1000, 100), PRICE, tier).cost_nano_usd == 2_000_000 * ratio


def test_the_discounts_of_the_cache_and_of_the_tier_are_not_added():
    assert (
        Bill.of(Tokens(1000, 0, 1000), PRICE, "batch").cost_nano_usd
        == Bill.of(Tokens(1000, 0, 1000), PRICE).cost_nano_usd
        == 1e5
    )


def test_the_surcharge_of_the_priority_tier_is_one_on_all_tokens():
    dear = PRICE.model_copy(update={"priority_ratio": 1.8})
    assert Bill.of(Tokens(1000, 100), dear, "priority").cost_nano_usd == 1.8 * 2_000_000
    assert Bill.of(Tokens(1000, 0, 1000), dear, "priority").cost_nano_usd == pytest.approx(1.8e5)
    assert Bill.of(Tokens(1000, 100, 400), dear, "standard") == Bill.of(Tokens(1000, 100, 400), PRICE, "standard")
    plain = dear.model_copy(update={"cached_input_usd_per_million_tokens": None})
    assert Bill.of(Tokens(1000, 0, 500), plain, "priority").cost_nano_usd == 1.8e6, (
        "by default that of other input"
    )


def test_a_cached_token_never_costs_more_than_another_one_of_its_tier():
    price = PRICE.model_copy(update={"cached_input_usd_per_million_tokens": None})
    assert (
        Bill.of(Tokens(1000, 0, 1000), price, "batch").cost_nano_usd
        == Bill.of(Tokens(1000), price, "batch").cost_nano_usd
    )


def test_the_cost_of_a_tier_without_a_known_price_is_unknown():
    assert Bill.of(Tokens(1000, 100), PRICE, "priority") == Bill(Tokens(1000, 100), None)
    assert Bill.of(Tokens(1000, 100), None, "priority") == Bill(Tokens(1000, 100), None)
    assert Bill.of(NO_TOKENS, PRICE, "priority") == NOTHING


def test_several_outcomes_have_cost_their_sums_and_nothing_known_where_one_price_is_not():
    first = Failure(kind="blocked", message="no", attempts=1, rejections=1, rejected_at=(7.0,), **BILL._asdict())
    second = Failure(kind="blocked", message="no", attempts=2, sheds=1, **BILL._asdict())
    assert paid_for([first, second]) == {
        **Bill(Tokens(20, 4, 6, 8), 200)._asdict(),
        "attempts": 3,
        "rejections": 1,
        "rejected_at": (7.0,),
        "sheds": 1,
    }
    unpriced = Failure(kind="blocked", message="no", tokens=Tokens(1), cost_nano_usd=None)
    assert paid_for([first, unpriced])["cost_nano_usd"] is None
    assert paid_for([])["cost_nano_usd"] == 0
