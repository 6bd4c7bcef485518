from __future__ import annotations

import itertools
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_llmbeam.pipeline.cascade.binomial import lower_bound
from airflow_provider_llmbeam.pipeline.cascade.calibration import (
    Calibration,
    Costs,
    Draw,
    StageAnswer,
    calibrate,
    find_reason_against,
)
from airflow_provider_llmbeam.pipeline.cascade.choice import choose_answer

BOUNDS = {"target_agreement": 0.9, "confidence": 0.95, "class_agreement": 0.8}


def draw_at_random(source, stages=1, right=0.85, distance=1.8, shares=None):
    label = None if shares is None else source.choices([*shares], [*shares.values()])[0]
    answers = []
    for _ in range(stages):
        agrees = source.random() < right
        wrong = None if shares is None else source.choice([*shares])
        given = label if agrees else wrong
        agrees = agrees if shares is None else given == label
        score = source.gauss(distance * agrees)
        answers.append(None if source.random() < 0.02 else StageAnswer(score, agrees, given))
    return Draw(tuple(answers), label=label)


def draws_of(seed, count, **fields):
    source = random.Random(seed)
    return [draw_at_random(source, **fields) for _ in range(count)]


def agreement_of(calibration, draws):
    """Counts final answers with the function that a job asks for each row."""
    chosen = [choose_answer(calibration, draw.stages) for draw in draws]
    return [
        draw.is_answered and (stage is None or draw.stages[stage].agrees)
        for draw, stage in zip(draws, chosen, strict=True)
    ]


COSTS = {1: Costs((0.1,), 1.0), 2: Costs((0.02, 0.2), 1.0), 3: Costs((0.02, 0.1, 0.3), 1.0)}


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6), count=st.integers(58, 600), stages=st.integers(1, 3))
def test_what_is_reported_is_what_the_choice_gives_on_the_half_that_tests_and_is_certain(seed, count, stages):
    draws = draws_of(seed, count, stages=stages)
    found = calibrate(draws, COSTS[stages], **BOUNDS)
    tested = draws[count // 2 :]
    agrees = agreement_of(found, tested)
    assert found.tested == len(tested)
    assert found.agreement == pytest.approx(sum(agrees) / len(tested))
    assert found.low == lower_bound(sum(agrees), len(tested), 0.95)
    chosen = [choose_answer(found, draw.stages) for draw in tested]
    assert found.kept == pytest.approx([chosen.count(stage) / len(tested) for stage in range(stages)])
    assert found.escalated == pytest.approx(chosen.count(None) / len(tested))
    assert found.low >= 0.9 - 1e-9
    assert bool(found.reason) == (found.asked == ())
    if found.asked:
        assert found.cost_per_row < found.cost_per_row_by_model
    assert Calibration.model_validate_json(found.model_dump_json()) == found


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6))
def test_each_guaranteed_class_is_certain_on_the_half_that_tests(seed):
    draws = draws_of(seed, 600, shares={"a": 0.6, "b": 0.3, "rare": 0.03, "c": 0.07})
    found = calibrate(draws, COSTS[1], **BOUNDS)
    tested = draws[300:]
    agrees = agreement_of(found, tested)
    assert "rare" in found.not_guaranteed
    assert {"a", "b"} <= set(found.guaranteed)
    for each in found.classes:
        of_class = [ok for draw, ok in zip(tested, agrees, strict=True) if draw.label == each.label]
        assert (each.draws, each.agreement) == (len(of_class), pytest.approx(sum(of_class) / len(of_class)))
        assert not found.asked or each.low >= 0.8 - 1e-9


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10**6), stages=st.integers(1, 2))
def test_the_tests_stop_at_the_first_that_fails_and_each_step_costs_less(seed, stages):
    curve = calibrate(draws_of(seed, 500, stages=stages), COSTS[stages], **BOUNDS).curve
    certified = [point.is_certified for point in curve]
    assert certified == sorted(certified, reverse=True)
    assert all(point.low >= 0.9 - 1e-9 for point in curve if point.is_certified)
    assert curve[0].escalated == 1
    if stages == 1:
        assert [point.escalated for point in curve] == sorted((p.escalated for p in curve), reverse=True)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10**6))
def test_what_the_tests_are_is_fixed_by_the_half_that_chooses(seed):
    choosing = draws_of(seed, 200)
    one, other = (calibrate([*choosing, *draws_of(seed + n, 200)], COSTS[1], **BOUNDS) for n in (1, 2))
    common = {point.thresholds for point in one.curve} & {point.thresholds for point in other.curve}
    assert len(common) >= min(len(one.curve), len(other.curve)) - 2  # the chosen point is shown besides


def test_a_draw_that_model_cannot_answer_counts_as_disagreement_whatever_is_kept():
    agreed = Draw((StageAnswer(1.0, True),))
    missing = Draw((StageAnswer(1.0, False),), is_answered=False)
    for share, is_certain in ((0.04, True), (0.2, False)):
        draws = [missing if number % 100 < share * 100 else agreed for number in range(400)]
        found = calibrate(draws, COSTS[1], **BOUNDS)
        assert found.agreement == pytest.approx(1 - share)
        assert (found.asked == (0,)) == is_certain
    assert found.reason == "`model` has not answered 40 of 200 draws, which count as disagreements"


def test_answers_that_are_always_right_are_kept_and_those_without_use_are_not_paid_for():
    draws = [Draw((None, StageAnswer(0.5, True))) for _ in range(200)]
    found = calibrate(draws, COSTS[2], **BOUNDS)
    assert (found.thresholds, found.asked, found.escalated) == ((None, 0.5), (1,), 0)
    assert found.cost_per_row == pytest.approx(0.2)


def test_a_stage_that_is_always_wrong_answers_nothing_and_the_reason_says_what_was_tested():
    draws = [Draw((StageAnswer(number % 7, False),)) for number in range(400)]
    found = calibrate(draws, COSTS[1], **BOUNDS)
    assert (found.asked, found.escalated, found.agreement) == ((), 1, 1)
    assert found.reason.startswith("no threshold is certain enough: with the safest that was tested, 8")


def test_a_stage_that_costs_as_much_as_model_is_not_asked():
    draws = [Draw((StageAnswer(1.0, True),)) for _ in range(200)]
    found = calibrate(draws, Costs((1.0,), 1.0), **BOUNDS)
    assert (found.asked, found.reason) == ((), "no threshold costs less than `model` alone")


def test_a_class_that_the_testing_half_lacks_is_not_certified():
    draws = [Draw((StageAnswer(1.0, True, label),), label=label) for label in ["a", "b"] * 50 + ["a"] * 100]
    found = calibrate(draws, COSTS[1], **BOUNDS)
    assert (found.asked, found.guaranteed) == ((), ("a", "b"))
    assert found.reason == (
        "no threshold is certain enough for class 'b': with the safest that was tested, 0.0% of its 0 draws "
        "agree, which certifies 0.0%, less than 80.0%"
    )


def test_a_class_that_a_stage_takes_for_another_one_is_the_reason():
    of_b = [Draw((StageAnswer(2.0, False, "a"),), label="b"), Draw((StageAnswer(1.0, True, "b"),), label="b")]
    draws = [*of_b, *(Draw((StageAnswer(1.0, True, "a"),), label="a") for _ in range(18))] * 50
    found = calibrate(draws, COSTS[1], **BOUNDS)
    assert (found.asked, found.guaranteed) == ((), ("a", "b"))
    assert found.reason.startswith(
        "no threshold is certain enough for class 'b': with the safest that was tested, 50.0%"
    )


def test_equal_scores_are_kept_or_escalate_together():
    draws = [Draw((StageAnswer(number % 3 / 3, number % 3 > 0),)) for number in range(600)]
    found = calibrate(draws, COSTS[1], **BOUNDS)
    assert (found.thresholds, found.agreement) == ((1 / 3,), 1)


@pytest.mark.parametrize(
    ("rows", "costs", "reason"),
    [
        (100_000, Costs((0.1,), 1.0), ""),
        (900, Costs((0.1,), 1.0), "the sample of 1,000 draws is not smaller than the 900 rows"),
        (
            1100,
            Costs((0.1, 0.5), 1.0),
            "the cascade saves at most 90.00 on 100 rows, and its calibration with 1,000 draws costs 600.00",
        ),
    ],
)
def test_a_cascade_that_cannot_save_what_its_sample_costs_is_not_calibrated(rows, costs, reason):
    assert find_reason_against(costs, rows=rows, sample_rows=1000) == reason


def test_five_thousand_draws_of_three_stages_are_searched_in_less_than_a_second():
    draws = draws_of(1, 5000, stages=3)
    spent = []
    for _ in range(3):
        began = time.process_time()
        calibrate(draws, COSTS[3], **BOUNDS)
        spent.append(time.process_time() - began)
    assert min(spent) < 1


def test_no_combination_that_was_looked_at_is_cheaper_and_as_safe_in_the_choosing_half():
    """Beside an exhaustive search with the function that a job asks."""
    draws = draws_of(5, 120, stages=2)
    found = calibrate(draws + draws, COSTS[2], **BOUNDS)  # both halves are the same
    choosing = draws
    assert found.asked
    scores = [sorted({d.stages[s].score for d in choosing if d.stages[s]}, reverse=True)[::8] for s in range(2)]
    for thresholds in itertools.product((None, *scores[0]), (None, *scores[1])):
        other = found.model_copy(update={"thresholds": thresholds})
        agrees = agreement_of(other, choosing)
        if lower_bound(sum(agrees), len(choosing), 0.95) < found.low:
            continue
        chosen = [choose_answer(other, draw.stages) for draw in choosing]
        first = 0.02 * (thresholds[0] is not None)
        second = 0.2 * (thresholds[1] is not None) * sum(stage != 0 for stage in chosen) / len(chosen)
        assert first + second + chosen.count(None) / len(chosen) >= found.cost_per_row - 1e-9
