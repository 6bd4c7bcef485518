from __future__ import annotations

import pytest

from airflow_provider_llmbeam.pipeline.cascade.distilled.curve import (
    LearningPoint,
    has_drifted,
    labels_pay,
    measure,
)


def test_a_classifier_could_keep_the_surest_answers_as_long_as_few_of_all_disagree():
    point = measure([0.9, 0.1, 0.8, 0.2], [True, False, False, True], [1, 1, 1, 1], target_agreement=0.75)
    assert point == LearningPoint(labels=4, agreement=0.5, kept=0.75)
    assert measure([0.9, 0.1], [False, True], [1, 1], target_agreement=0.9).kept == 0


def test_a_prompt_of_several_draws_counts_as_often():
    assert measure([0.9, 0.1], [True, False], [3, 1], target_agreement=0.9).kept == 0.75


def curve(*kept: float) -> list[LearningPoint]:
    return [LearningPoint(labels=100 * 2**place, agreement=0.9, kept=each) for place, each in enumerate(kept)]


@pytest.mark.parametrize(
    ("kept", "rows", "pays"),
    [
        ((0.5, 0.6), 10_000, True),
        ((0.5, 0.6), 1000, False),
        ((0.6, 0.6), 10**6, False),
        ((0.6, 0.5), 10**6, False),
        ((0.5, 0.56), 10_000, False),
        ((0.5,), 10**6, False),
    ],
)
def test_more_labels_are_asked_for_if_a_flattening_curve_saves_more_than_they_are(kept, rows, pays):
    assert labels_pay(curve(*kept), rows=rows, labels=400) is pays
    assert not labels_pay(curve(*kept), rows=rows, labels=0)


def test_the_noise_of_one_point_of_the_curve_does_not_decide():
    assert labels_pay(curve(0.3, 0.5, 0.5), rows=10_000, labels=400)
    assert not labels_pay(curve(0.5, 0.4, 0.5), rows=10_000, labels=400)


@pytest.mark.parametrize(
    ("kept_rows", "rows", "drifted"),
    [
        (6000, 10_000, False),
        (6300, 10_000, False),
        (8000, 10_000, True),
        (3, 10, False),
        (4000, 10_000, True),
        (0, 0, False),
    ],
)
def test_rows_have_drifted_if_another_share_of_them_is_kept_than_chance_explains(kept_rows, rows, drifted):
    assert has_drifted(kept=0.6, tested=500, rows=rows, kept_rows=kept_rows) is drifted


def test_without_test_draws_nothing_is_known_of_drift():
    assert not has_drifted(kept=0.0, tested=0, rows=100, kept_rows=50)
