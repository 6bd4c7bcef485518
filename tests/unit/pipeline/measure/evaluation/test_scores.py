"""Scores against known values, and their properties."""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.pipeline.measure.evaluation.interval import bootstrap_interval
from airflow_provider_llmbeam.pipeline.measure.evaluation.scores import (
    Mark,
    label_scores,
    macro_f1,
    mean_score,
    score_of,
)

LABELS = st.sampled_from(["good", "bad", "mixed"])
pairs = st.lists(st.tuples(LABELS, LABELS | st.none()), min_size=1, max_size=40)
values = st.lists(st.floats(0, 1), min_size=1, max_size=30)
#: Two spam messages are found, one is missed and one message is wrongly called spam.
SPAM = [("spam", "spam")] * 2 + [("spam", "ham")] + [("ham", "ham")] * 5 + [("ham", "spam")]


def test_the_scores_of_labels_are_those_of_their_definitions():
    spam = label_scores(SPAM)["spam"]
    assert (spam.precision, spam.recall, spam.rows) == (2 / 3, 2 / 3, 3)
    assert spam.f1 == pytest.approx(2 / 3)
    assert label_scores(SPAM)["ham"].f1 == pytest.approx(2 * 5 / 12)
    assert macro_f1(SPAM) == pytest.approx((2 / 3 + 5 / 6) / 2)


def test_a_label_that_nobody_expected_lowers_the_score_and_a_missing_answer_is_no_label():
    assert macro_f1([("a", "a"), ("a", "b")]) == pytest.approx((2 / 3 + 0) / 2)
    assert macro_f1([("a", "a"), ("a", None)]) == pytest.approx(2 / 3)
    assert label_scores([("a", "a"), ("a", "b")])["b"].model_dump() == {
        "precision": 0.0,
        "recall": 0.0,
        "f1": 0.0,
        "rows": 0,
    }


@given(pairs)
def test_f1_is_the_harmonic_mean_and_depends_on_no_order(found):
    for label in label_scores(found).values():
        both = label.precision + label.recall
        assert label.f1 == pytest.approx(2 * label.precision * label.recall / both if both else 0)
    assert macro_f1(found) == pytest.approx(macro_f1(found[::-1]))
    assert 0 <= macro_f1(found) <= 1
    assert (macro_f1(found) == 1) == all(expected == answer for expected, answer in found)


@given(values, st.integers(0, 5))
def test_an_interval_is_within_the_values_and_the_same_for_the_same_seed(found, seed):
    low, high = bootstrap_interval(found, fmean, seed)
    assert min(found) - 1e-9 <= low <= high <= max(found) + 1e-9
    assert bootstrap_interval(found, fmean, seed) == (low, high)


def test_the_interval_of_a_share_is_about_that_of_the_normal_distribution():
    shares = [1.0] * 160 + [0.0] * 40
    low, high = bootstrap_interval(shares, fmean)
    half = 1.96 * math.sqrt(0.8 * 0.2 / 200)
    assert low == pytest.approx(0.8 - half, abs=0.012)
    assert high == pytest.approx(0.8 + half, abs=0.012)


@pytest.mark.full
def test_95_of_100_intervals_contain_the_true_share():
    draws = random.Random(1)
    contained = 0
    for seed in range(100):
        sample = [float(draws.random() < 0.7) for _ in range(80)]
        low, high = bootstrap_interval(sample, fmean, seed)
        contained += low <= 0.7 <= high
    assert contained >= 90


def test_a_score_is_the_mean_of_its_marks_or_the_f1_of_its_labels():
    assert score_of([Mark(1.0), Mark(0.5)]) == mean_score([1.0, 0.5])
    labelled = score_of([Mark(float(a == b), a, labels=(a, b)) for a, b in SPAM])
    assert labelled.score == macro_f1(SPAM)
    assert (labelled.rows, set(labelled.labels)) == (9, {"spam", "ham"})
    assert str(mean_score([1.0, 1.0])) == "1.000 (1.000 to 1.000)"
