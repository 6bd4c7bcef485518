"""Marks: what each metric says of each answer."""

from __future__ import annotations

import importlib
import json
import math
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError
from airflow_provider_llmbeam.pipeline.elements import Row
from airflow_provider_llmbeam.pipeline.measure.evaluation.rows import KeyedRows
from airflow_provider_llmbeam.pipeline.measure.evaluation.scores import Mark
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

#: Marks the answer of a row; `NO_ANSWER` for one that has none.
Marker = Callable[[Row, Any], Mark]
NO_ANSWER = object()
#: Largest integer up to which each one is a float.
_MAX_EXACT = 2**53


def marker_of(name: str, metric: Metric, rows: KeyedRows, output_schema: Any = None) -> Marker | None:
    """Returns what marks answers by a metric; `None` for a judge, which is asked about all answers together.

    Args:
        name: Name of the metric.
        metric: The metric.
        rows: The golden set.
        output_schema: JSON Schema of the answers; `None` for texts.

    Raises:
        JobSpecError: The metric does not fit the golden set or the answers, or its function is not found.
    """
    match metric:
        case ExactMetric() | LabelF1Metric() | NumericMetric():
            _check_columns(name, metric, rows)
            return _FieldMarker(metric, _path(name, metric, output_schema), metric.column_of(name))
        case ValidJsonMetric():
            schema = None if metric.json_schema is None else AnswerSchema(metric.json_schema)
            return lambda _, answer: _json_mark(answer, schema, is_text=output_schema is None)
        case PythonMetric():
            return _FunctionMarker(name, metric.function)
        case JudgeMetric():
            return None


def normalised(value: Any, *, ignore_case: bool = False, ignore_whitespace: bool = False) -> str:
    """Returns the text of a value; one that is no text becomes JSON, as the cell of a CSV file would hold it.

    A letter with an accent is one character, where it may also be written as two (Unicode's NFC).
    """
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
    text = unicodedata.normalize("NFC", text)
    if ignore_whitespace:
        text = " ".join(text.split())
    return text.casefold() if ignore_case else text


def comparable(one: Any, other: Any) -> tuple[Any, Any]:
    """Returns two values as they are compared: whole numbers are equal, written `1` or `1.0`.

    A text stays as it is, and a number that is compared with one that has a point, as in a CSV file.
    """
    return _beside(one, other), _beside(other, one)


def _beside(value: Any, other: Any) -> Any:
    return value if isinstance(value, str) or (isinstance(other, str) and "." in other) else whole(value)


def whole(value: Any) -> Any:
    """Returns a value whose numbers without a fraction are integers: 4 for 4.0, but `True` for `True`."""
    match value:
        case float() if value.is_integer() and abs(value) <= _MAX_EXACT:
            return int(value)
        case dict():
            return {name: whole(inner) for name, inner in value.items()}
        case list() | tuple():
            return [*map(whole, value)]
    return value


class _FieldMarker:
    def __init__(
        self, metric: ExactMetric | LabelF1Metric | NumericMetric, path: tuple[str, ...], column: str
    ) -> None:
        self._metric = metric
        self._path = path
        self._column = column

    def __call__(self, row: Row, answer: Any) -> Mark:
        metric, expected = self._metric, row[self._column]
        found = _at(answer, self._path)
        if isinstance(metric, NumericMetric):
            return Mark(float(found is not NO_ANSWER and _is_near(found, expected, metric)), expected)
        if found is NO_ANSWER and expected is None and answer is not NO_ANSWER:
            found = None  # a field that an answer may lack, as `review.fields` writes it
        expected_value, found_value = comparable(expected, found)
        wanted = self._text(expected_value)
        given = None if found is NO_ANSWER else self._text(found_value)
        labels = (wanted, given) if isinstance(metric, LabelF1Metric) else None
        return Mark(float(wanted == given), expected, labels=labels)

    def _text(self, value: Any) -> str:
        metric = self._metric
        assert isinstance(metric, ExactMetric | LabelF1Metric)
        return normalised(value, ignore_case=metric.ignore_case, ignore_whitespace=metric.ignore_whitespace)


class _FunctionMarker:
    def __init__(self, name: str, path: str) -> None:
        self._name = name
        self._path = path
        module, _, attribute = path.partition(":")
        try:
            self._function = getattr(importlib.import_module(module), attribute)
        except Exception as error:
            raise JobSpecError(
                f"`metrics.{name}.function`: {path!r} cannot be imported by the Python of the job: "
                f"{type(error).__name__}: {error}. Nothing was sent or billed."
            ) from error

    def __call__(self, row: Row, answer: Any) -> Mark:
        if answer is NO_ANSWER:
            return Mark(0.0)
        try:
            value = self._function(row, answer)
        except Exception as error:
            raise self._fault(f"raised {type(error).__name__}: {error}") from error
        if not isinstance(value, bool | int | float) or not 0 <= value <= 1:
            raise self._fault(f"returned {value!r}; expected a bool, or a number from 0 to 1")
        return Mark(float(value))

    def _fault(self, fault: str) -> JobFailedError:
        return JobFailedError(
            f"`metrics.{self._name}.function`: {self._path!r} {fault}. The answers are in the journal; another "
            "evaluation pays for none of them again."
        )


def _check_columns(name: str, metric: ExactMetric | LabelF1Metric | NumericMetric, rows: KeyedRows) -> None:
    column = metric.column_of(name)
    for key, row in rows.items():
        if column not in row:
            raise JobSpecError(
                f"`metrics.{name}.expected`: row {key} of the golden set has no column {column!r}; it has "
                f"{sorted(row)}. Nothing was sent or billed."
            )
        if isinstance(metric, NumericMetric) and _number(row[column]) is None:
            raise JobSpecError(
                f"`metrics.{name}.expected`: row {key} of the golden set has no number in column {column!r} but "
                f"{row[column]!r}. Nothing was sent or billed."
            )


def _path(name: str, metric: ExactMetric | LabelF1Metric | NumericMetric, output_schema: Any) -> tuple[str, ...]:
    if output_schema is None:
        if metric.field is not None:
            raise JobSpecError(
                f"`metrics.{name}.field`: the answers are texts without fields, as `prompt.output_schema` is not "
                f"set; got {metric.field!r}. Nothing was sent or billed."
            )
        return ()
    if _has_no_fields(output_schema):
        if metric.field is not None:
            raise JobSpecError(
                f"`metrics.{name}.field`: the answers have no fields, as the type of `prompt.output_schema` is "
                f"{output_schema.get('type')!r}; got {metric.field!r}. Nothing was sent or billed."
            )
        return ()
    path = tuple(metric.field_of(name).split("."))
    known = output_schema.get("properties")
    if isinstance(known, dict) and path[0] not in known:
        raise JobSpecError(
            f"`metrics.{name}.field`: `prompt.output_schema` has no field {path[0]!r}; it has {sorted(known)}. "
            "Nothing was sent or billed."
        )
    return path


def _has_no_fields(output_schema: Mapping[str, Any]) -> bool:
    """Whether no answer of a schema is an object."""
    kind = answer_type(output_schema).kind
    if kind != "any":
        return kind != "object"
    types = output_schema.get("type", "object")
    return "object" not in ([types] if isinstance(types, str) else types)


def _at(answer: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        if not isinstance(answer, dict) or name not in answer:
            return NO_ANSWER
        answer = answer[name]
    return answer


def _is_near(answer: Any, expected: Any, metric: NumericMetric) -> bool:
    found, wanted = _number(answer), _number(expected)
    if found is None or wanted is None:
        return False
    tolerance = max(metric.absolute_tolerance, metric.relative_tolerance * abs(wanted))
    # 0.4 - 0.3 is more than 0.1 by the rounding of each number.
    rounding = 2 * math.ulp(max(abs(found), abs(wanted), tolerance)) if tolerance else 0.0
    return abs(found - wanted) <= tolerance + rounding


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _json_mark(answer: Any, schema: AnswerSchema | None, *, is_text: bool) -> Mark:
    if answer is NO_ANSWER:
        return Mark(0.0)
    if is_text:
        try:
            answer = json.loads(answer)
        except (ValueError, RecursionError) as error:
            return Mark(0.0, note=f"no JSON: {error}")
    mismatch = None if schema is None else schema.mismatch(answer)
    return Mark(float(mismatch is None), note=mismatch or "")
