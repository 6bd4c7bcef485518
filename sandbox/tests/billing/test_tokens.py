from __future__ import annotations

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmbeam_sandbox import ManualClock, ModelSettings, Sandbox, TokenPrice, TokenPrices
from llmbeam_sandbox.billing.tokens import TIERS, TokenBill

ASKED = {"contents": [{"parts": [{"text": "a question of some length"}]}]}


def test_audio_has_a_price_of_its_own() -> None:
    bill = bill_of()
    bill.add("m", "flex", 100, 20, 10, audio_tokens=50)
    assert bill.nano_usd == (30 * 300 + 50 * 1000 + 10 * 2500) // 2 + 20 * 30


def bill_of(*answers):
    bill = TokenBill(TokenPrices(models={"dear": TokenPrice(input_usd=1.25, output_usd=10.0, priority_ratio=2.0)}))
    for answer in answers:
        bill.add(*answer)
    return bill


@pytest.mark.parametrize(
    ("answer", "nano_usd"),
    [
        (("m", "standard", 100, 0, 10), 100 * 300 + 10 * 2500),
        (("m", "batch", 100, 0, 10), (100 * 300 + 10 * 2500) // 2),
        (("m", "flex", 100, 0, 10), (100 * 300 + 10 * 2500) // 2),
        (("m", "standard", 100, 80, 10), 20 * 300 + 80 * 30 + 10 * 2500),
        (("m", "flex", 100, 80, 0), 20 * 150 + 80 * 30),
        (("dear", "standard", 100, 0, 10), 100 * 1250 + 10 * 10_000),
        (("m", "priority", 100, 80, 10), (20 * 300 + 80 * 30 + 10 * 2500) * 18 // 10),
        (("dear", "priority", 100, 0, 10), 2 * (100 * 1250 + 10 * 10_000)),
    ],
)
def test_an_answer_costs_by_its_model_tier_and_tokens(answer, nano_usd) -> None:
    assert bill_of(answer).nano_usd == nano_usd


@given(st.lists(st.tuples(st.sampled_from(["m", "dear"]), st.sampled_from(TIERS), *[st.integers(0, 10**6)] * 3)))
def test_the_tiers_add_up_to_the_bill(answers) -> None:
    bill = bill_of(*answers)
    assert sum(bill.by_tier().values()) == bill.nano_usd == bill.fields()["nano_usd"]
    assert sum(charge.answers for charge in bill.charges) == len(answers)


def test_a_negative_price_is_refused() -> None:
    with pytest.raises(ValueError, match="output_usd"):
        TokenPrice(output_usd=-1.0)
    with pytest.raises(ValueError, match="priority_ratio"):
        TokenPrice(priority_ratio=0.8)


def test_online_answers_are_billed_until_a_reset() -> None:
    prices = TokenPrices(default=TokenPrice(input_usd=1.0, output_usd=2.0))
    with Sandbox(clock=ManualClock(), models=ModelSettings(prices=prices)) as sandbox:
        url = f"{sandbox.url}/v1beta/models/gemini-2.5-flash:generateContent"
        for body in (ASKED, {"contents": []}):
            answer = httpx.post(url, json=body, headers={"x-goog-api-key": "k"})
        assert answer.status_code == 400
        (charge,) = sandbox.token_bill.charges
        assert (charge.model, charge.tier, charge.answers) == ("gemini-2.5-flash", "standard", 1)
        assert sandbox.token_bill.nano_usd == 1000 * charge.input_tokens + 2000 * charge.output_tokens
        assert httpx.get(f"{sandbox.url}/sandbox/token-bill").json() == sandbox.token_bill.fields()
        sandbox.reset()
        assert sandbox.token_bill.nano_usd == 0


def test_the_charges_are_also_known_by_label() -> None:
    bill = TokenBill(TokenPrices())
    bill.add("m", "standard", 100, 0, 0, labels=(("dag", "a"), ("team", "x")))
    bill.add("m", "batch", 100, 0, 0, labels=(("dag", "a"),))
    bill.add("m", "standard", 100, 0, 0, labels=(("dag", "b"),))
    bill.add("m", "standard", 100, 0, 0)
    assert bill.by_label("dag") == {"a": 45_000, "b": 30_000}
    assert bill.by_label("team") == {"x": 30_000}
    assert bill.nano_usd == 105_000
    assert [(charge.tier, charge.answers) for charge in bill.charges] == [("batch", 1), ("standard", 3)]
