from __future__ import annotations

from airflow_provider_llmbeam.pipeline.cascade.calibration import Costs, Draw, StageAnswer, calibrate
from airflow_provider_llmbeam.pipeline.cascade.choice import choose_answer, is_kept

BOUNDS = {"target_agreement": 0.9, "confidence": 0.95, "class_agreement": 0.8}


def test_what_a_stage_predicts_to_be_of_a_class_without_guarantee_escalates():
    draws = [Draw((StageAnswer(1.0, True, label),), label=label) for label in ["a"] * 19 + ["rare"]] * 20
    found = calibrate(draws, Costs((0.1,), 1.0), **BOUNDS)
    assert (found.guaranteed, found.not_guaranteed) == (("a",), ("rare",))
    assert is_kept(found, 0, StageAnswer(1.0, label="a"))
    assert not is_kept(found, 0, StageAnswer(9.0, label="rare"))
    assert not is_kept(found, 0, StageAnswer(9.0, label="never drawn"))


def test_a_stage_that_failed_or_has_no_score_escalates():
    found = calibrate(
        [Draw((StageAnswer(1.0, True), None)) for _ in range(200)], Costs((0.02, 0.2), 1.0), **BOUNDS
    )
    assert choose_answer(found, (StageAnswer(1.0), None)) == 0
    assert choose_answer(found, (None, StageAnswer(9.0))) is None
    assert choose_answer(found, (StageAnswer(float("inf")), None)) is None
