"""Verdicts of a judge that sees two answers in both orders."""

from __future__ import annotations

import pytest

from airflow_provider_llmbeam.pipeline.measure.evaluation.compare import quantile
from airflow_provider_llmbeam.pipeline.measure.evaluation.judging import verdict_of


@pytest.mark.parametrize(
    ("in_order", "swapped", "verdict"),
    [
        ("first", "second", "job"),
        ("second", "first", "other"),
        ("first", "first", "inconsistent"),
        ("second", "second", "inconsistent"),
        ("tie", "tie", "tie"),
        ("first", "tie", "job"),
        ("tie", "first", "other"),
        ("tie", "second", "job"),
        ("second", "tie", "other"),
    ],
)
def test_a_judge_that_prefers_a_place_has_no_say(in_order, swapped, verdict):
    assert verdict_of(in_order, swapped) == verdict


def test_quantiles_are_values_that_occur():
    assert quantile([], 0.5) is None
    assert quantile([1.0], 0.95) == 1
    assert (quantile([1.0, 2.0, 3.0, 4.0], 0.5), quantile([1.0, 2.0, 3.0, 4.0], 0.95)) == (2, 4)
