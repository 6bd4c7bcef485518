"""Elements of the graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from airflow_provider_llmbeam.engine.outcome import Completion, Failure
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.spec.fields.failure_kind import FailureKind

Row = dict[str, Any]

#: Origin of an answer: received now, after a repair, or by batch inference of this run; from the journal, of this
#: job or of another one; or shared with an equal prompt.
Origin = Literal["fresh", "repaired", "batch", "resumed", "cached", "duplicate"]

#: Tag of the output with `FailedRow`s.
FAILED = "failed"


#: A row and the text, system text, media and tokens of media of its prompt. A plain tuple: it crosses a shuffle,
#: and Beam's own coder takes 0.9 µs for one, and 6 µs for a custom class, which it pickles.
RenderedRow = tuple[Row, str, str | None, tuple[tuple[str, str | None], ...], int]


# Beam pickles each batch once to measure its size; see `Prompt` for why there are no slots.
@dataclass(frozen=True)
class Request:
    """A request for all rows of one fingerprint."""

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
        failure: Reason of the failure.
        origin: Origin of the failure, as that of an answer: the cost is counted with a `fresh` one.
    """

    row: Row
    failure: Failure
    origin: Origin = "fresh"


def failed_row(row: Row, kind: FailureKind, message: str) -> FailedRow:
    """Returns a row for which no request was made."""
    return FailedRow(row, Failure(kind=kind, message=message))
