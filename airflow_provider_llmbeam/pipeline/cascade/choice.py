"""Decides which stage answers a row. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_llmbeam.pipeline.cascade.calibration import Calibration, StageAnswer, may_be_kept


def is_kept(calibration: Calibration, stage: int, answer: StageAnswer | None) -> bool:
    """Whether a row keeps the answer of a stage; otherwise it escalates to the next stage that is asked.

    Args:
        calibration: The calibration.
        stage: Index of the stage.
        answer: Its answer; `None` if it failed.
    """
    threshold = calibration.thresholds[stage]
    return (
        answer is not None
        and threshold is not None
        and answer.score >= threshold
        and may_be_kept(calibration.guaranteed, answer)
    )


def choose_answer(calibration: Calibration, answers: Sequence[StageAnswer | None]) -> int | None:
    """Returns the first stage whose answer a row keeps; `None` if `model` answers it.

    Args:
        calibration: The calibration.
        answers: Answers of the stages; `None` for one that failed or was not asked.
    """
    return next((stage for stage, answer in enumerate(answers) if is_kept(calibration, stage, answer)), None)
