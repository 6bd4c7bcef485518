from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.plan import (
    PREFIX_CHARACTERS,
    PlannedRequest,
    StaticBatching,
    in_order,
    padding_ratio,
    plan,
)
from airflow_provider_llmbeam.engine.prompt import Prompt, Turn

prompts = st.lists(st.builds(Prompt, st.text(max_size=40), st.none() | st.text(max_size=40)), max_size=30)
batchings = st.builds(
    StaticBatching,
    max_padded_tokens=st.integers(1, 60),
    max_instances=st.integers(1, 8),
    max_bytes=st.integers(1, 200),
)


@given(prompts, st.none() | batchings)
def test_every_prompt_is_planned_exactly_once(batch: list[Prompt], batching: StaticBatching | None) -> None:
    indices = [index for request in plan(batch, batching) for index in request.indices]
    assert sorted(indices) == list(range(len(batch)))


@given(prompts)
def test_the_longest_prompts_are_planned_first_and_equal_ones_keep_their_order(batch: list[Prompt]) -> None:
    keys = [(-request.input_tokens[0], request.indices) for request in plan(batch)]
    assert keys == sorted(keys)


@given(prompts, batchings)
def test_a_static_request_keeps_every_limit_unless_one_prompt_alone_breaks_it(
    batch: list[Prompt], batching: StaticBatching
) -> None:
    for request in plan(batch, batching):
        if len(request.indices) > 1:
            assert request.padded_tokens <= batching.max_padded_tokens
            assert len(request.indices) <= batching.max_instances
            assert sum(len(batch[index].text.encode()) for index in request.indices) <= batching.max_bytes


@given(prompts, batchings)
def test_the_costliest_static_request_is_planned_first(batch: list[Prompt], batching: StaticBatching) -> None:
    longest = [request.input_tokens[0] for request in plan(batch, batching)]
    assert longest == sorted(longest, reverse=True)


def test_prompts_with_a_common_prefix_are_planned_together_at_the_position_of_the_longest() -> None:
    document = "d" * PREFIX_CHARACTERS
    batch = [
        Prompt(f"{document} a short question"),
        Prompt("m" * (PREFIX_CHARACTERS + 200)),
        Prompt(f"{document} {'a long question ' * 40}"),
    ]
    assert [request.indices for request in plan(batch)] == [(2,), (0,), (1,)]


def test_the_system_instruction_counts() -> None:
    batch = [Prompt("a" * 40), Prompt("a" * 40, system="b" * 40)]
    assert plan(batch) == [PlannedRequest((1,), (20,)), PlannedRequest((0,), (10,))]


def test_the_history_of_a_conversation_counts() -> None:
    later = Prompt("a" * 40, history=(Turn("b" * 40, "c" * 40),))
    assert in_order([Prompt("a" * 40), later], 3) == [PlannedRequest((3,), (10,)), PlannedRequest((4,), (30,))]
    assert later.characters == 120


def test_an_empty_system_instruction_costs_nothing() -> None:
    assert plan([Prompt("a" * 40, system="")])[0].input_tokens == (10,)


def test_no_prompts_give_an_empty_plan() -> None:
    assert plan([]) == []
    assert plan([], StaticBatching(max_padded_tokens=1)) == []
    assert padding_ratio([]) == 0.0


def test_sharegpt_like_lengths_pad_less_than_three_percent() -> None:
    chances = random.Random(0)
    batch = [Prompt("x" * 4 * max(1, round(chances.lognormvariate(4.24, 1.3)))) for _ in range(10_000)]
    requests = plan(batch, StaticBatching(max_padded_tokens=16_384))
    assert padding_ratio(requests) == pytest.approx(0.02, abs=0.01)
    assert max(len(request.indices) for request in requests) <= 1024


def test_limits_are_narrowed_and_never_widened() -> None:
    server = StaticBatching(max_padded_tokens=1000, max_instances=100)
    assert server.within(500, 10) == StaticBatching(max_padded_tokens=500, max_instances=10)
    assert server.within(5000, 500) == server
    assert server.within(5000, None) == server


def test_a_lone_surrogate_does_not_stop_the_plan() -> None:
    (request,) = plan([Prompt("cut \ud83d"), Prompt("a")], StaticBatching(max_padded_tokens=100))
    assert sorted(request.indices) == [0, 1]
