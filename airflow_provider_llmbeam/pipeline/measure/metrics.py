"""Metrics: a mark for each answer, and from the marks of all a score with its interval."""

from __future__ import annotations

import importlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, TypeVar

from pydantic import BaseModel

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError
from airflow_provider_llmbeam.pipeline.compare_values import is_near, make_comparable, normalise, number_of
from airflow_provider_llmbeam.pipeline.elements import Row
from airflow_provider_llmbeam.pipeline.measure.rows import KeyedRows
from airflow_provider_llmbeam.spec.evaluation import (
    ExactMetric,
    JudgeMetric,
    LabelF1Metric,
    Metric,
    NumericMetric,
    PythonMetric,
    ValidJsonMetric,
)
from airflow_provider_llmbeam.spec.prompt.answer_schema import AnswerSchema
from airflow_provider_llmbeam.spec.prompt.answer_type import answer_type

T = TypeVar("T")
#: An expected label and the answered one; `None` without an answer.
LabelPair = tuple[str, str | None]
_FieldMetric = ExactMetric | LabelF1Metric | NumericMetric

NO_ANSWER = object()
#: Number of resamples: the ends of an interval then differ by about 1 % of its width from those of many more.
RESAMPLES = 1000
_OUTSIDE = 0.05


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


#: Marks the answer of a row; `NO_ANSWER` for one that has none.
Marker = Callable[[Row, Any], Mark]


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


def score_marks(marks: Sequence[Mark], seed: int = 0) -> Score:
    """Returns the score of one or more marks of a metric: the macro-averaged F1 of labels, else the mean."""
    pairs = [mark.labels for mark in marks if mark.labels is not None]
    if not pairs:
        return mean_score([mark.value for mark in marks], seed)
    low, high = bootstrap_interval(pairs, macro_f1, seed)
    return Score(score=macro_f1(pairs), low=low, high=high, rows=len(pairs), labels=label_scores(pairs))


def mean_score(values: Sequence[float], seed: int = 0) -> Score:
    """Returns the mean of values, one or more, as a score."""
    low, high = bootstrap_interval(values, fmean, seed)
    return Score(score=fmean(values), low=low, high=high, rows=len(values))


def macro_f1(pairs: Iterable[LabelPair]) -> float:
    """Returns the mean of the F1 scores of all labels, expected or answered."""
    return fmean(each.f1 for each in label_scores(pairs).values())


def label_scores(pairs: Iterable[LabelPair]) -> dict[str, LabelScore]:
    """Returns the scores of each label, expected or answered."""
    right, expected, answered = Counter[str](), Counter[str](), Counter[str]()
    for (label, found), count in Counter(pairs).items():
        expected[label] += count
        if found is not None:
            answered[found] += count
        if found == label:
            right[label] += count
    return {
        label: LabelScore(
            precision=right[label] / answered[label] if answered[label] else 0.0,
            recall=right[label] / expected[label] if expected[label] else 0.0,
            f1=2 * right[label] / (expected[label] + answered[label]),
            rows=expected[label],
        )
        for label in sorted(expected.keys() | answered)
    }


def bootstrap_interval(
    cases: Sequence[T], statistic: Callable[[Sequence[T]], float], seed: int = 0
) -> tuple[float, float]:
    """Returns the 95 % percentile interval of a statistic: equal cases and seeds give equal intervals.

    Cases that are all alike, one or more, give an interval of no width, however few they are.
    """
    source = random.Random(seed)
    found = sorted(statistic(source.choices(cases, k=len(cases))) for _ in range(RESAMPLES))
    outside = round(RESAMPLES * _OUTSIDE / 2)
    return found[outside], found[-1 - outside]


def make_marker(name: str, metric: Metric, rows: KeyedRows, output_schema: Any = None) -> Marker | None:
    """Returns what marks answers by a metric; `None` for a judge, which is asked about all answers together.

    Raises:
        JobSpecError: The metric does not fit the golden set or the answers, or its function is not found.
    """
    match metric:
        case ExactMetric() | LabelF1Metric() | NumericMetric():
            column, path = metric.column_of(name), _path(name, metric, output_schema)
            _check_column(name, metric, column, rows)
            return lambda row, answer: _mark_field(metric, row[column], answer, path)
        case ValidJsonMetric():
            schema = None if metric.json_schema is None else AnswerSchema(metric.json_schema)
            return lambda _, answer: _mark_json(answer, schema, is_text=output_schema is None)
        case PythonMetric():
            function = _import(name, metric.function)
            return lambda row, answer: _mark_by_function(name, metric.function, function, row, answer)
        case JudgeMetric():
            return None


def _mark_field(metric: _FieldMetric, expected: Any, answer: Any, path: tuple[str, ...]) -> Mark:
    found = answer
    for name in path:
        found = found.get(name, NO_ANSWER) if isinstance(found, dict) else NO_ANSWER
    if isinstance(metric, NumericMetric):
        return Mark(float(is_near(found, expected, metric)), expected)
    if found is NO_ANSWER and expected is None and answer is not NO_ANSWER:
        found = None  # a field that an answer may lack, as a review writes it
    wanted, given = (
        normalise(value, ignore_case=metric.ignore_case, ignore_whitespace=metric.ignore_whitespace)
        for value in make_comparable(expected, found)
    )
    labels = wanted, None if found is NO_ANSWER else given
    return Mark(
        float(labels[0] == labels[1]), expected, labels=labels if isinstance(metric, LabelF1Metric) else None
    )


def _mark_json(answer: Any, schema: AnswerSchema | None, *, is_text: bool) -> Mark:
    if answer is NO_ANSWER:
        return Mark(0.0)
    if is_text:
        try:
            answer = json.loads(answer)
        except (ValueError, RecursionError) as error:
            return Mark(0.0, note=f"no JSON: {error}")
    mismatch = None if schema is None else schema.mismatch(answer)
    return Mark(float(mismatch is None), note=mismatch or "")


def _import(name: str, path: str) -> Callable[[Row, Any], Any]:
    module, _, attribute = path.partition(":")
    try:
        function: Callable[[Row, Any], Any] = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise JobSpecError(
            f"`metrics.{name}.function`: {path!r} cannot be imported by the Python of the job: "
            f"{type(error).__name__}: {error}."
        ) from error
    return function


def _mark_by_function(name: str, path: str, function: Callable[[Row, Any], Any], row: Row, answer: Any) -> Mark:
    if answer is NO_ANSWER:
        return Mark(0.0)
    cause = None
    try:
        value = function(row, answer)
        if isinstance(value, bool | int | float) and 0 <= value <= 1:
            return Mark(float(value))
        fault = f"returned {value!r}; expected a bool, or a number from 0 to 1"
    except Exception as error:  # noqa: BLE001 - the function may raise anything
        fault, cause = f"raised {type(error).__name__}: {error}", error
    raise JobFailedError(
        f"`metrics.{name}.function`: {path!r} {fault}. The answers are in the journal; another evaluation pays "
        "for none of them again."
    ) from cause


def _check_column(name: str, metric: _FieldMetric, column: str, rows: KeyedRows) -> None:
    for key, row in rows.items():
        if column not in row:
            raise JobSpecError(
                f"`metrics.{name}.expected`: row {key} of the golden set has no column {column!r}; it has "
                f"{sorted(row)}."
            )
        if isinstance(metric, NumericMetric) and number_of(row[column]) is None:
            raise JobSpecError(
                f"`metrics.{name}.expected`: row {key} of the golden set has no number in column {column!r} but "
                f"{row[column]!r}."
            )


def _path(name: str, metric: _FieldMetric, output_schema: Any) -> tuple[str, ...]:
    """Returns the path of the field that a metric compares; an empty one for the whole answer."""
    if output_schema is None or _has_no_fields(output_schema):
        if metric.field is None:
            return ()
        why = (
            "are texts without fields, as `prompt.output_schema` is not set"
            if output_schema is None
            else f"have no fields, as the type of `prompt.output_schema` is {output_schema.get('type')!r}"
        )
        raise JobSpecError(f"`metrics.{name}.field`: the answers {why}; got {metric.field!r}.")
    path = tuple((metric.field or name).split("."))
    known = output_schema.get("properties")
    if isinstance(known, dict) and path[0] not in known:
        raise JobSpecError(
            f"`metrics.{name}.field`: `prompt.output_schema` has no field {path[0]!r}; it has {sorted(known)}."
        )
    return path


def _has_no_fields(output_schema: Mapping[str, Any]) -> bool:
    """Whether no answer of a schema is an object."""
    kind = answer_type(output_schema).kind
    if kind != "any":
        return kind != "object"
    types = output_schema.get("type", "object")
    return "object" not in ([types] if isinstance(types, str) else types)
