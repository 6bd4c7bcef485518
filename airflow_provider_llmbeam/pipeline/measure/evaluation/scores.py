"""Scores of a metric: from the marks of single rows to a number with its interval."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from pydantic import BaseModel

from airflow_provider_llmbeam.pipeline.measure.evaluation.interval import bootstrap_interval

#: An expected label and the answered one; `None` without an answer.
LabelPair = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class Mark:
    """What a metric says of one row.

    Attributes:
        value: From 0, wrong, to 1, right.
        expected: The expected value; `None` if the metric expects none.
        note: Reason, e.g. of a judge.
        labels: The labels, for a metric of labels.
    """

    value: float
    expected: Any = None
    note: str = ""
    labels: LabelPair | None = None


class LabelScore(BaseModel):
    """Scores of one label.

    Attributes:
        precision: Share of the rows with this answer that expected it; 0 without any.
        recall: Share of the rows that expected it with this answer; 0 without any.
        f1: Harmonic mean of both.
        rows: Number of rows that expected it.
    """

    precision: float
    recall: float
    f1: float
    rows: int


class Score(BaseModel):
    """The score of a metric, from 0 to 1.

    Attributes:
        score: The score of all rows.
        low: Lower end of its 95 % interval.
        high: Upper end.
        rows: Number of rows that have a mark.
        labels: Scores of the labels, for a metric of labels.
    """

    score: float
    low: float
    high: float
    rows: int
    labels: dict[str, LabelScore] = {}

    def __str__(self) -> str:
        return f"{self.score:.3f} ({self.low:.3f} to {self.high:.3f})"


def score_of(marks: Sequence[Mark], seed: int = 0) -> Score:
    """Returns the score of a metric: the macro-averaged F1 of labels, else the mean.

    Args:
        marks: Marks of one metric, one or more.
        seed: Seed of the interval.
    """
    pairs = [mark.labels for mark in marks if mark.labels is not None]
    if pairs:
        low, high = bootstrap_interval(pairs, macro_f1, seed)
        return Score(score=macro_f1(pairs), low=low, high=high, rows=len(pairs), labels=label_scores(pairs))
    return mean_score([mark.value for mark in marks], seed)


def mean_score(values: Sequence[float], seed: int = 0) -> Score:
    """Returns the mean of values, one or more, as a score."""
    low, high = bootstrap_interval(values, fmean, seed)
    return Score(score=fmean(values), low=low, high=high, rows=len(values))


def macro_f1(pairs: Iterable[LabelPair]) -> float:
    """Returns the mean of the F1 scores of all labels, expected or answered."""
    both, expected, answered = _counts(Counter(pairs))
    return fmean(2 * both[label] / (expected[label] + answered[label]) for label in expected.keys() | answered)


def label_scores(pairs: Iterable[LabelPair]) -> dict[str, LabelScore]:
    """Returns the scores of each label, expected or answered."""
    both, expected, answered = _counts(Counter(pairs))
    return {
        label: LabelScore(
            precision=both[label] / answered[label] if answered[label] else 0.0,
            recall=both[label] / expected[label] if expected[label] else 0.0,
            f1=2 * both[label] / (expected[label] + answered[label]),
            rows=expected[label],
        )
        for label in sorted(expected.keys() | answered)
    }


def _counts(pairs: Mapping[LabelPair, int]) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Returns, by label, the rows that are right, those that expected it, and those that answered it."""
    both, expected, answered = Counter[str](), Counter[str](), Counter[str]()
    for (label, found), count in pairs.items():
        expected[label] += count
        if found is not None:
            answered[found] += count
        if found == label:
            both[label] += count
    return both, expected, answered
