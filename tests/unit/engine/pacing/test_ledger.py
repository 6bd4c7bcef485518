from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.pacing.ledger import Ledger
from airflow_provider_llmbeam.exceptions import JobFailedError

NAMES = st.sampled_from("abc")
AMOUNTS = st.integers(0, 10**9)
STEPS = st.lists(
    st.tuples(st.just("take"), NAMES, AMOUNTS, AMOUNTS) | st.tuples(st.just("close"), NAMES, AMOUNTS, st.just(0)),
    max_size=30,
)


def after(ledger: Ledger, step: tuple[str, str, int, int]) -> Ledger:
    kind, name, first, second = step
    return ledger.take(name, first, first + second) if kind == "take" else ledger.close(name, first)


@given(STEPS, st.floats(0.01, 5))
def test_no_more_is_taken_than_the_budget_has(steps: list[tuple[str, str, int, int]], usd: float) -> None:
    ledger = Ledger(usd=usd)
    for step in steps:
        if step[0] == "take":
            ledger = after(ledger, step)
            assert ledger.taken_nano_usd <= round(usd * 10**9)
        elif step[2] <= ledger.open.get(step[1], 0):  # nothing spent beyond what was taken
            ledger = after(ledger, step)


@given(STEPS)
def test_a_write_that_is_repeated_after_a_lost_reply_changes_nothing_more(
    steps: list[tuple[str, str, int, int]],
) -> None:
    once = twice = Ledger(usd=3.0)
    for step in steps:
        if step[0] == "take":
            step = (*step[:3], 0)  # exactly what is needed: a block may grow by a part of what is left
        once = after(once, step)
        twice = after(after(twice, step), step)
        assert once == twice


def test_a_block_has_at_most_a_part_of_what_is_left_and_at_least_what_the_next_request_costs() -> None:
    ledger = Ledger(usd=1.0).take("a", 1000, 2 * 10**8)
    assert ledger.take("a", 1000, 10**9).open["a"] == 6 * 10**8, "one process takes half of what is left"
    ledger = ledger.take("b", 1000, 12 * 10**8)
    assert ledger.open["b"] == round(8 * 10**8 / 3), "a third of what is left"
    ledger = ledger.take("c", 4 * 10**8, 4 * 10**8)
    assert ledger.open["c"] == 4 * 10**8, "what the next request costs"
    left = ledger.left_nano_usd
    ledger = ledger.take("d", 1000, 10**9)
    assert ledger.open["d"] == round(left / 4), "a quarter"
    assert ledger.take("e", 2 * 10**8, 2 * 10**8) == ledger, "more than is left"


def test_what_a_process_did_not_spend_is_left_for_others() -> None:
    ledger = Ledger(usd=1.0).take("a", 10**9, 10**9)
    assert ledger.left_nano_usd == 0
    ledger = ledger.close("a", 3 * 10**8)
    assert (ledger.left_nano_usd, ledger.open) == (7 * 10**8, {})
    assert ledger.take("a", 10**8, 10**8).close("a", 10**8).ended_nano_usd == 4 * 10**8, "a name may come again"


def test_a_later_run_may_have_another_budget_and_what_was_spent_counts() -> None:
    content = Ledger(usd=1.0).take("a", 10**9, 10**9).close("a", 10**9).content()
    assert Ledger.read(content, 1.5, "x").left_nano_usd == 5 * 10**8
    assert Ledger.read(content, 0.5, "x").left_nano_usd == 0
    assert Ledger.read(None, 2.0, "x").left_nano_usd == 2 * 10**9


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "Invalid JSON"),
        (b'{"usd": 1.0, "open": {"a": 5}', "Invalid JSON"),
        (b"[]", "should be an object"),
        (b'{"version": 2, "usd": 1.0}', "has version 2 of its format"),
        (b'{"version": "2", "usd": 1.0}', "`version`"),
        (b'{"usd": 1.0, "spent": 3}', "`spent`"),
        (b'{"usd": 1.0, "open": {"a": -1}}', "`open.a`"),
    ],
)
def test_a_ledger_that_cannot_be_read_is_named_and_never_taken_for_an_empty_one(
    content: bytes, fault: str
) -> None:
    with pytest.raises(JobFailedError) as caught:
        Ledger.read(content, 1.0, "gs://bucket/budgets/month.json")
    assert fault in str(caught.value)
    assert "'gs://bucket/budgets/month.json'" in str(caught.value)


def test_the_file_has_numbers_that_a_person_can_read() -> None:
    assert json.loads(Ledger(usd=2.0).take("nightly.1f", 5, 5).content()) == {
        "version": 1,
        "usd": 2.0,
        "open": {"nightly.1f": 5},
        "ended_nano_usd": 0,
    }
