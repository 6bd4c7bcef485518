from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.plan import plan
from airflow_provider_llmbeam.engine.prompt import Prompt

prompts = st.lists(st.builds(Prompt, st.text(max_size=40), st.none() | st.text(max_size=40)), max_size=30)


@given(prompts)
def test_every_prompt_is_planned_exactly_once(batch: list[Prompt]) -> None:
    assert sorted(request.index for request in plan(batch)) == list(range(len(batch)))


@given(prompts)
def test_the_longest_goes_first_and_equals_keep_their_order(batch: list[Prompt]) -> None:
    keys = [(-request.input_tokens, request.index) for request in plan(batch)]
    assert keys == sorted(keys)


def test_the_system_instruction_counts() -> None:
    short, with_system = Prompt("a" * 40), Prompt("a" * 40, system="b" * 40)
    assert [(request.index, request.input_tokens) for request in plan([short, with_system])] == [(1, 20), (0, 10)]


def test_an_empty_system_instruction_costs_nothing() -> None:
    assert plan([Prompt("a" * 40, system="")])[0].input_tokens == 10


def test_nothing_to_plan_is_an_empty_plan() -> None:
    assert plan([]) == []
