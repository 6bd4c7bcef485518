"""What flows through the graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from airflow_provider_llmbeam.engine.outcome import Completion, Failure, FailureKind
from airflow_provider_llmbeam.engine.prompt import Prompt

Row = dict[str, Any]

#: How an answered row came by its answer: asked now, asked again as the first answer was not valid, found in the
#: journal of this job or of another one, or shared with an equal prompt.
Origin = Literal["fresh", "repaired", "resumed", "cached", "duplicate"]

#: Name of the output that carries `FailedRow`s.
FAILED = "failed"


#: A row and the text, system text and media of its prompt. A plain tuple: it crosses a shuffle, and Beam's own
#: coder takes 0.9 µs for one, 6 µs for a class of ours, which it pickles.
RenderedRow = tuple[Row, str, str | None, tuple[tuple[str, str | None], ...]]


# Beam pickles each batch once to know its size; see `Prompt` for why there are no slots.
@dataclass(frozen=True)
class Request:
    """What is asked once for all rows of one fingerprint."""

    fingerprint: str
    rows: tuple[Row, ...]
    prompt: Prompt


@dataclass(frozen=True, slots=True)
class AnsweredRow:
    """A row with its answer."""

    row: Row
    fingerprint: str
    completion: Completion
    origin: Origin


@dataclass(frozen=True, slots=True)
class FailedRow:
    """A row without an answer.

    Attributes:
        row: The row as read, or `{"llmbeam_raw": text}` when it could not be read.
        failure: Why.
        is_duplicate: The request was another row's, so its cost is counted there.
    """

    row: Row
    failure: Failure
    is_duplicate: bool = False


def failed_row(row: Row, kind: FailureKind, message: str) -> FailedRow:
    """A row that never became a request."""
    return FailedRow(row, Failure(kind=kind, message=message))
