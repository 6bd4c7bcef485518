"""Whether two answers agree, and the class of an answer. Pure, except for what a judge is asked elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_llmbeam.spec.cascade import Agreement, JudgeAgreement


def agrees(agreement: Mapping[str, Agreement], answer: Any, expected: Any) -> bool:
    """Whether an answer of a stage agrees with that of `model`, in all that needs no judge.

    Args:
        agreement: `cascade.agreement`.
        answer: Answer of the stage: a parsed value with an output schema, else a text.
        expected: Answer of `model`, likewise.
    """
    raise NotImplementedError


def judged_parts(
    agreement: Mapping[str, Agreement], answer: Any, expected: Any
) -> tuple[tuple[JudgeAgreement, Any, Any], ...]:
    """Returns what a judge has to compare: the comparison, and both values; none that are equal.

    Args:
        agreement: `cascade.agreement`.
        answer: Answer of the stage.
        expected: Answer of `model`.
    """
    raise NotImplementedError


def find_label_path(
    agreement: Mapping[str, Agreement], output_schema: Mapping[str, Any] | None
) -> tuple[str, ...] | None:
    """Returns the path of the value that is the class of an answer; `None` for a job without classes.

    It is the first field with an `enum`, or a boolean, that `agreement` compares; empty: the whole answer.

    Args:
        agreement: `cascade.agreement`.
        output_schema: Schema of the answers.
    """
    raise NotImplementedError


def label_of(answer: Any, path: tuple[str, ...] | None) -> str | None:
    """Returns the class of an answer as a text; `None` without classes."""
    raise NotImplementedError
