from __future__ import annotations

from fractions import Fraction
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.pipeline.cascade.binomial import lower_bound, lower_tails, upper_bound


@given(draws=st.integers(1, 60), percent=st.integers(1, 99))
def test_tails_are_those_of_exact_arithmetic(draws, percent):
    share = Fraction(percent, 100)
    tail = Fraction(0)
    for count, found in enumerate(lower_tails(draws, percent / 100)):
        tail += comb(draws, count) * share**count * (1 - share) ** (draws - count)
        assert found == pytest.approx(float(tail), rel=1e-9)


def test_bounds_are_those_of_published_tables():
    # Clopper & Pearson 1934; 0.05^(1/n) without a failure, and 3 of 20 at 95 % to both sides: 0.032 to 0.379.
    assert lower_bound(59, 59, 0.95) == pytest.approx(0.05 ** (1 / 59))
    assert lower_bound(3, 20, 0.975) == pytest.approx(0.0321, abs=5e-5)
    assert upper_bound(3, 20, 0.975) == pytest.approx(0.3789, abs=5e-5)
    assert (lower_bound(0, 9, 0.95), upper_bound(9, 9, 0.95)) == (0, 1)


@given(draws=st.integers(1, 400), data=st.data(), target=st.sampled_from([0.8, 0.9, 0.95, 0.98]))
def test_a_bound_is_at_least_the_target_just_where_the_test_rejects(draws, data, target):
    agreed = data.draw(st.integers(0, draws))
    rejects = lower_tails(draws, 1 - target)[draws - agreed] <= 0.05
    assert (lower_bound(agreed, draws, 0.95) >= target - 1e-9) == rejects
