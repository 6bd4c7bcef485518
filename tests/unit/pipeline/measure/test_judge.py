"""Verdicts of a judge that sees two answers in both orders."""

from __future__ import annotations

import pytest

from airflow_provider_llmbeam.pipeline.measure.judge import preference


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
    assert preference(in_order, swapped) == verdict
