"""Whether two answers agree, and the class of an answer. Pure: what a judge has to say is asked elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_provider_llmbeam.pipeline.compare_values import is_near, make_comparable, normalise
from airflow_provider_llmbeam.spec.answer_comparison import TextComparison
from airflow_provider_llmbeam.spec.cascade import (
    ALL_FIELDS,
    Agreement,
    JudgeAgreement,
    NumericAgreement,
    SetF1Agreement,
)
from airflow_provider_llmbeam.spec.prompt.labels import find_label_fields, is_label

#: A comparison, and the values of the answer and of that of `model`.
Part = tuple[Agreement, Any, Any]


def agrees(agreement: Mapping[str, Agreement], answer: Any, expected: Any) -> bool:
    """Whether an answer of a stage agrees with that of `model`, in all that needs no judge.

    Args:
        agreement: `cascade.agreement`.
        answer: Answer of the stage: a parsed value with an output schema, else a text.
        expected: Answer of `model`, likewise.
    """
    return all(
        _is_equal(comparison, one, other)
        for comparison, one, other in _parts(agreement, answer, expected)
        if not isinstance(comparison, JudgeAgreement)
    )


def find_judged_parts(
    agreement: Mapping[str, Agreement], answer: Any, expected: Any
) -> tuple[tuple[JudgeAgreement, Any, Any], ...]:
    """Returns what a judge has to compare: the comparison, and both values; none that are equal.

    Args:
        agreement: `cascade.agreement`.
        answer: Answer of the stage.
        expected: Answer of `model`.
    """
    return tuple(
        (comparison, one, other)
        for comparison, one, other in _parts(agreement, answer, expected)
        if isinstance(comparison, JudgeAgreement) and not _is_equal(comparison, one, other)
    )


def find_label_path(
    agreement: Mapping[str, Agreement], output_schema: Mapping[str, Any] | None, choices: Sequence[str] = ()
) -> tuple[str, ...] | None:
    """Returns the path of the value that is the class of an answer; `None` for a job without classes.

    It is the first field with an `enum`, or a boolean, that `agreement` compares; empty: the whole answer.

    Args:
        agreement: `cascade.agreement`.
        output_schema: Schema of the answers.
        choices: `generation.choices`, the only answers without a schema.
    """
    if output_schema is None:
        return () if choices else None
    if is_label(output_schema, output_schema):
        return ()
    compared = (name for name in find_label_fields(output_schema) if ALL_FIELDS in agreement or name in agreement)
    return next(((name,) for name in compared), None)


def label_of(answer: Any, path: tuple[str, ...] | None) -> str | None:
    """Returns the class of an answer as a text; `None` for a job without classes."""
    return None if path is None else normalise(_value_at(answer, path))


def _parts(agreement: Mapping[str, Agreement], answer: Any, expected: Any) -> Iterator[Part]:
    """Yields what is compared; a judge sees all the fields that `agreement` does not name at once."""
    named = {path: comparison for path, comparison in agreement.items() if path != ALL_FIELDS}
    for path, comparison in named.items():
        yield comparison, _value_at(answer, path.split(".")), _value_at(expected, path.split("."))
    if ALL_FIELDS not in agreement:
        return
    comparison = agreement[ALL_FIELDS]
    if not (isinstance(answer, dict) and isinstance(expected, dict)):
        yield comparison, answer, expected
        return
    others = sorted((answer.keys() | expected.keys()) - {path.partition(".")[0] for path in named})
    if isinstance(comparison, JudgeAgreement):
        one, other = ({name: each.get(name) for name in others} for each in (answer, expected))
        yield comparison, one, other
        return
    for name in others:
        yield comparison, answer.get(name), expected.get(name)


def _value_at(answer: Any, path: Sequence[str]) -> Any:
    for name in path:
        answer = answer.get(name) if isinstance(answer, dict) else None
    return answer


def _is_equal(comparison: Agreement, answer: Any, expected: Any) -> bool:
    match comparison:
        case NumericAgreement():
            return answer == expected or is_near(answer, expected, comparison)
        case SetF1Agreement():
            ours, theirs = _items(answer, comparison), _items(expected, comparison)
            return 2 * len(ours & theirs) >= comparison.minimum * (len(ours) + len(theirs))
    rules = comparison if isinstance(comparison, TextComparison) else TextComparison()
    return _text(answer, expected, rules) == _text(expected, answer, rules)


def _items(value: Any, rules: TextComparison) -> set[str]:
    items = value if isinstance(value, list | tuple) else [] if value is None else [value]
    return {_text(item, None, rules) for item in items}


def _text(value: Any, beside: Any, rules: TextComparison) -> str:
    one, _ = make_comparable(value, beside)
    return normalise(one, ignore_case=rules.ignore_case, ignore_whitespace=rules.ignore_whitespace)
