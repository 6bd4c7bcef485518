from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.bill import Bill
from airflow_provider_llmbeam.engine.pacing.budget import Budget
from airflow_provider_llmbeam.engine.token_counts import Tokens
from airflow_provider_llmbeam.exceptions import BudgetExceededError, JobError
from airflow_provider_llmbeam.spec import Price
from airflow_provider_llmbeam.spec.facts import ASSUMED_PRIORITY_RATIO
from airflow_provider_llmbeam.spec.protocol.counts import NANO

PRICE = Price(input_usd_per_million_tokens=1.0, output_usd_per_million_tokens=10.0)

tokens = st.integers(0, 10**6)


def bill(input_tokens: int, output_tokens: int, price: Price = PRICE) -> Bill:
    return Bill(Tokens(input_tokens, output_tokens), round(price.cost_usd(input_tokens, output_tokens) * NANO))


@given(st.lists(st.tuples(tokens, tokens), max_size=20), st.floats(0.01, 100))
def test_a_budget_is_spent_when_the_tokens_cost_more(replies: list[tuple[int, int]], budget_usd: float) -> None:
    budget = Budget(budget_usd)
    for reply in replies:
        budget.add(bill(*reply))
    cost_usd = PRICE.cost_usd(sum(into for into, _ in replies), sum(out for _, out in replies))
    assert budget.spent_usd == pytest.approx(cost_usd)
    assert budget.is_spent == (budget.spent_usd > budget_usd)


def test_the_last_cent_may_be_spent() -> None:
    budget = Budget(1.0)
    budget.add(bill(1_000_000, 0))
    assert not budget.is_spent
    budget.add(bill(1, 0))
    assert budget.is_spent


def test_free_tokens_never_spend_a_budget() -> None:
    budget = Budget(0.01)
    budget.add(bill(10**12, 10**12, Price(input_usd_per_million_tokens=0, output_usd_per_million_tokens=0)))
    assert not budget.is_spent


def test_replies_of_a_tier_without_a_known_price_are_charged_and_hide_no_others() -> None:
    budget = Budget(2.9)
    budget.add(Bill.of(Tokens(1_000_000), PRICE, "priority"), PRICE)
    assert budget.spent_usd == ASSUMED_PRIORITY_RATIO
    budget.add(Bill.of(Tokens(1_000_000), PRICE), PRICE)
    assert budget.spent_usd == ASSUMED_PRIORITY_RATIO + 1
    budget.add(Bill.of(Tokens(0, 50_000), PRICE, "flex"), PRICE)
    assert budget.is_spent


def test_the_price_of_the_tier_is_charged_where_it_is_known() -> None:
    budget, price = Budget(3.0), PRICE.model_copy(update={"priority_ratio": 2.5})
    budget.add(Bill.of(Tokens(1_000_000), price, "priority"), price)
    assert budget.spent_usd == 2.5


def test_the_error_has_the_cost_and_how_to_continue() -> None:
    budget = Budget(0.5)
    budget.add(bill(12_345, 60_000))
    error = budget.error()
    assert str(error).startswith(
        "This process has spent $0.612345 on 12,345 input and 60,000 output tokens, and `limits.budget_usd` is "
        "$0.5. "
    )
    assert "sends and bills nothing more" in str(error)
    assert "The journal, if there is one, has the answers so far" in str(error)
    assert "run the job again" in str(error)


def test_an_automatic_retry_would_spend_another_budget() -> None:
    assert JobError.retryable
    assert not BudgetExceededError.retryable
    with pytest.raises(JobError):
        raise Budget(1.0).error()
