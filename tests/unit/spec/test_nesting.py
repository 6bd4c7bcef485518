from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.spec.nesting import MAX_DEPTH, depth_exceeds, text_depth_exceeds
from tests.hostile import examples


def nested(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


def depth(value: Any) -> int:
    if not isinstance(value, (dict, list)):
        return 0
    return 1 + max(map(depth, value.values() if isinstance(value, dict) else value), default=0)


@pytest.mark.parametrize("levels", [0, 1, 5, MAX_DEPTH])
def test_a_value_of_as_many_levels_as_allowed_is_accepted(levels: int) -> None:
    assert not depth_exceeds(nested(levels), levels)
    assert not depth_exceeds([1, nested(max(levels - 1, 0)), {}], max(levels, 2))


@pytest.mark.parametrize("levels", [1, 5, 101, 100_000])
def test_a_value_of_more_levels_is_not(levels: int) -> None:
    assert depth_exceeds(nested(levels), min(levels - 1, MAX_DEPTH))


@pytest.mark.fuzz
@examples(0.2)
@given(
    st.recursive(
        st.none() | st.text("[{a", max_size=3),
        lambda inner: st.lists(inner) | st.dictionaries(st.text("[{"), inner),
    )
)
def test_the_depth_of_any_value_is_compared_with_the_limit(value: Any) -> None:
    text = json.dumps(value)
    for limit in range(4):
        assert depth_exceeds(value, limit) == (depth(value) > limit)
        assert text_depth_exceeds(text, value, limit) == text_depth_exceeds(text.encode(), value, limit)
        assert text_depth_exceeds(text, value, limit) == (depth(value) > limit)


def test_brackets_in_a_text_are_not_levels() -> None:
    value = {"a": "[" * 1000}
    assert not text_depth_exceeds(json.dumps(value), value)


def test_a_value_that_contains_itself_is_too_deep() -> None:
    value: list[Any] = []
    value += [value, value, value]
    assert depth_exceeds(value)


def test_a_value_with_one_part_in_many_places_is_walked_in_bounded_work() -> None:
    """As a tree it would have 2 to the power of 90 lists."""
    value: list[Any] = []
    for _ in range(90):
        value = [value, value]
    assert not depth_exceeds(value)
