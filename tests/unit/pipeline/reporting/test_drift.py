from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.pipeline.reporting.drift import (
    compare_runs,
    length_stability,
    ratio_has_changed,
    stability,
)
from tests.unit.pipeline.reporting.test_history import summary

labels = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 1000), min_size=1)


def test_the_stability_index_has_its_known_value() -> None:
    """(0.2 − 0.3) · ln(0.2 / 0.3) + (0.5 − 0.4) · ln(0.5 / 0.4)."""
    found = stability({"a": 200, "b": 300, "c": 500}, {"a": 300, "b": 300, "c": 400})
    assert (
        found.psi
        == pytest.approx(0.1 * math.log(1.5) + 0.1 * math.log(1.25))
        == pytest.approx(0.0628609, abs=1e-6)
    )
    assert found.expected == pytest.approx(0.004)
    assert not found.is_notable


@given(labels)
def test_equal_shares_have_not_moved(counts: dict[str, int]) -> None:
    twice = {name: 2 * count for name, count in counts.items()}
    assert stability(counts, twice).psi == pytest.approx(0, abs=1e-12)


@given(labels, labels)
def test_the_index_is_symmetric_and_not_negative(now: dict[str, int], before: dict[str, int]) -> None:
    assert stability(now, before).psi == pytest.approx(stability(before, now).psi)
    assert stability(now, before).psi >= 0


def test_a_label_that_is_new_has_a_finite_index() -> None:
    found = stability({"a": 50, "new": 50}, {"a": 100})
    assert math.isfinite(found.psi)
    assert found.is_notable


def test_what_chance_alone_may_give_is_not_notable() -> None:
    found = stability({"a": 3, "b": 7}, {"a": 5, "b": 5})
    assert found.psi > 0.1
    assert not found.is_notable


def test_without_answers_nothing_is_compared() -> None:
    assert stability({}, {"a": 1}) is None
    assert stability({"a": 1}, {}) is None
    assert length_stability({}, {}) is None
    assert not ratio_has_changed(1, 1, 0, 0)


def test_lengths_are_compared_in_ten_groups_that_were_equally_frequent() -> None:
    before = dict.fromkeys(range(100), 10)
    assert length_stability(before, before).psi == 0
    assert length_stability(before, before).expected == pytest.approx((10 - 1) * (1 / 1000 + 1 / 1000))
    longer = {number + 30: 10 for number in range(100)}
    assert length_stability(longer, before).psi > 0.25
    a_little_longer = {number + 1: 10 for number in range(100)}
    assert length_stability(a_little_longer, before).psi < 0.1


def test_a_length_that_every_answer_has_is_a_group_of_its_own() -> None:
    assert length_stability({5: 100}, {5: 100}).psi == 0
    assert length_stability({500: 100}, {5: 100}).is_notable


@pytest.mark.parametrize(
    ("failed", "rows", "failed_before", "rows_before", "has_changed"),
    [
        (100, 1000, 10, 1000, True),
        (10, 1000, 100, 1000, True),
        (540, 1000, 460, 1000, True),  # 3.6 standard errors
        (11, 1000, 10, 1000, False),  # a tenth of a percentage point
        (3, 10, 0, 10, False),  # chance alone
        (0, 1000, 0, 1000, False),
    ],
)
def test_a_ratio_has_changed_if_it_matters_and_chance_does_not_explain_it(
    failed: int, rows: int, failed_before: int, rows_before: int, has_changed: bool
) -> None:
    assert ratio_has_changed(failed, rows, failed_before, rows_before) is has_changed


def test_the_first_run_is_compared_with_none() -> None:
    assert compare_runs(summary(), ()) is None


def test_a_run_like_the_others_has_nothing_notable() -> None:
    found = compare_runs(summary("now", 2000.0), (summary("a"), summary("b", 1500.0)))
    assert found.changes == []
    assert (found.runs, found.last_run) == (2, "b")
    assert found.lengths_psi == 0
    assert found.line == "Compared with the last 2 runs, until 1970-01-01 00:25 UTC: nothing notable has changed."
    assert found.figures["failed_ratio"].model_dump() == {"now": 0.01, "last": 0.01, "mean": 0.01}


def test_what_has_changed_is_said_in_sentences() -> None:
    now = summary(
        "now",
        model="gemini:h",
        parts={"prompt.template": "q"},
        failed=200,
        refused=150,
        models={"h-001": 800},
        lengths={200: 800},
        labels={"category": {"a": 100, "c": 700}},
    )
    found = compare_runs(now, (summary("a"),))
    assert found.changes == [
        "the model was 'gemini:g' before",
        "`prompt.template` changed",
        "model version 'h-001' is new",
        "20.0% of the rows failed, 1.0% before",
        "15.0% of the answers were refused, 0.5% before",
        f"the lengths of the answers differ (PSI {found.lengths_psi:.2f})",
        f"the labels of 'category' differ (PSI {found.labels[0].psi:.2f})",
    ]
    assert found.failed_ratio_difference == 0.19
    assert found.line.startswith("Compared with the last run, until 1970-01-01 00:16 UTC: the model was ")


def test_only_the_last_seven_runs_count() -> None:
    old = tuple(summary(str(number), labels={"category": {"z": 990}}) for number in range(5))
    found = compare_runs(summary("now"), (*old, *(summary(f"new {number}") for number in range(7))))
    assert found.runs == 7
    assert found.changes == []


def test_a_run_without_rows_or_prices_is_compared_as_far_as_it_goes() -> None:
    nothing = summary("now", rows=0, failed=0, refused=0, cost_usd=None, models={}, lengths={}, labels={})
    found = compare_runs(nothing, (nothing, summary("a")))
    assert found.figures["failed_ratio"].now is None
    assert found.figures["cost_usd"].model_dump() == {"now": None, "last": 1.5, "mean": 1.5}
    assert found.lengths_psi is None
