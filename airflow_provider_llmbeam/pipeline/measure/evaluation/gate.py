"""Whether the scores of an evaluation are accepted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from airflow_provider_llmbeam.pipeline.measure.evaluation.scores import Score
from airflow_provider_llmbeam.spec.evaluation import Evaluation

#: Differences that floating-point numbers make are none.
_EPSILON = 1e-9


def faults(evaluation: Evaluation, scores: Mapping[str, Score], accepted: Mapping[str, Score] | None) -> list[str]:
    """Returns the scores that are not accepted, as sentences.

    Args:
        evaluation: The thresholds.
        scores: Scores by metric.
        accepted: Scores of the last accepted evaluation of the same golden set; `None` without one.
    """
    return [*_below_minimum(evaluation, scores), *_dropped(evaluation, scores, accepted or {})]


def _below_minimum(evaluation: Evaluation, scores: Mapping[str, Score]) -> Iterator[str]:
    for name, minimum in evaluation.minimum.items():
        if scores[name].score < minimum - _EPSILON:
            yield f"{name} is {scores[name]}, and `minimum` is {minimum:g}."


def _dropped(evaluation: Evaluation, scores: Mapping[str, Score], accepted: Mapping[str, Score]) -> Iterator[str]:
    if evaluation.max_drop is None:
        return
    for name, before in accepted.items():
        if scores[name].score < before.score - evaluation.max_drop - _EPSILON:
            yield (
                f"{name} is {scores[name]}, and the last accepted evaluation had {before.score:.3f}; `max_drop` "
                f"is {evaluation.max_drop:g}."
            )
