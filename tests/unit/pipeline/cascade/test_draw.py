from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.pipeline.cascade.draw import draw_positions, draw_sample

WEIGHTS = st.dictionaries(st.text("0123456789abcdef", min_size=4, max_size=4), st.integers(1, 50), min_size=1)


@given(weights=WEIGHTS, seed=st.integers(0, 2**32), shuffled=st.randoms(use_true_random=False))
def test_a_retry_draws_the_same_prompts_in_whatever_order_they_are_read(weights, seed, shuffled):
    items = list(weights.items())
    shuffled.shuffle(items)
    drawn = draw_sample(weights, seed, 40)
    assert draw_sample(dict(items), seed, 40) == drawn
    assert len(drawn) == 40
    assert set(drawn) <= set(weights)


@given(weights=WEIGHTS, seed=st.integers(0, 2**32))
def test_the_sums_of_rows_by_the_first_digit_find_the_same_prompts(weights, seed):
    """As a graph does it that holds no list of all prompts."""
    found = []
    for position in draw_positions(sum(weights.values()), seed, 20):
        left = position
        for digit in "0123456789abcdef":
            begun = {digest: rows for digest, rows in weights.items() if digest.startswith(digit)}
            if left < sum(begun.values()):
                break
            left -= sum(begun.values())
        numbered = [digest for digest in sorted(begun) for _ in range(begun[digest])]
        found.append(numbered[left])
    assert tuple(found) == draw_sample(weights, seed, 20)


def test_a_prompt_is_drawn_as_often_as_it_has_rows_and_counts_each_time():
    drawn = Counter(draw_sample({"a": 900, "b": 100}, 3, 10_000))
    assert abs(drawn["b"] - 1000) < 4 * 30  # four standard deviations
    assert drawn.total() == 10_000


def test_more_draws_begin_with_the_same_ones_and_another_seed_draws_others():
    weights = {f"{number:04d}": 1 for number in range(1000)}
    assert draw_sample(weights, 1, 200)[:100] == draw_sample(weights, 1, 100)
    assert draw_sample(weights, 1, 100) != draw_sample(weights, 2, 100)


def test_nothing_is_drawn_from_no_rows():
    assert draw_sample({}, 1, 10) == ()
