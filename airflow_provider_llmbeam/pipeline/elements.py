"""Elements of the graph, and their prompts."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import apache_beam as beam

from airflow_provider_llmbeam.engine.bill import paid_for
from airflow_provider_llmbeam.engine.outcome import Completion, Failure
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.value import value
from airflow_provider_llmbeam.spec.fields.failure_kind import FailureKind

Row = dict[str, Any]


#: Origin of an answer: received now, after a repair, or by batch inference of this run; from the journal, of this
#: job or of another one; shared with an equal prompt; or the replacement of a prompt that was not sent.
Origin = Literal["fresh", "repaired", "batch", "resumed", "cached", "duplicate", "replaced"]
#: Those of a request of this run.
OF_THIS_RUN: frozenset[Origin] = frozenset({"fresh", "repaired", "batch"})

#: Attributes of an `AnsweredRow` that are columns of an output row with moderation.
MODERATION_COLUMNS = ("moderation_input", "moderation_output")

#: Tag of the output with `FailedRow`s.
FAILED = "failed"

#: Column of a row with its place in the source, until one row of a key is selected by it.
PLACE = "\0place"

#: Column that carries the flag of a prompt with its row until the row is answered.
FLAG = "\0moderation_input"


class Flag(str):
    """What a prompt was flagged for. Its type tells it from a column of the source."""

    __slots__ = ()


def without_flag(row: Row) -> Row:
    """Returns a row without the flag of its prompt."""
    return {name: value for name, value in row.items() if name != FLAG} if is_flagged(row) else row


def is_flagged(row: Row) -> bool:
    """Returns whether the prompt of a row was flagged."""
    return isinstance(row.get(FLAG), Flag)


#: A row and the text, system text, media and tokens of media of its prompt. A plain tuple: it crosses a shuffle,
#: and Beam's own coder takes 0.9 µs for one, and 6 µs for a custom class, which it pickles.
RenderedRow = tuple[Row, str, str | None, tuple[tuple[str, str | None], ...], int]


class RowPrompt(NamedTuple):
    """A row, masked if its job masks rows, and its prompt."""

    row: Row
    fingerprint: str
    prompt: Prompt


@value()
class Request:
    """A request for all rows of one fingerprint.

    Attributes:
        fingerprint: The fingerprint.
        rows: The rows.
        prompt: Their prompt.
        about: Fingerprints of the prompts that the answer is a verdict on, or on whose answers, for the journal.
        batch_error: Error of the same request in batch inference, which is quoted if it fails again.
        audited: The answer of a stage of the cascade that the rows would keep, if they are of the audit sample.
    """

    fingerprint: str
    rows: tuple[Row, ...]
    prompt: Prompt
    about: tuple[str, ...] = ()
    batch_error: str | None = None
    audited: AuditedAnswer | None = None


@value()
class AuditedAnswer:
    """An answer of a stage of the cascade that rows would keep, if `model` were not asked, too, for the audit.

    Attributes:
        stage: Name of the stage.
        value: The answer: a value of the output schema, or a text.
    """

    stage: str
    value: Any


@value()
class Escalation:
    """A request of a job with a cascade on its way through the stages.

    Attributes:
        request: The request, as it would be sent to `model`.
        known: The answer of `model` that the journal has, and its origin; `None` without one.
        samples: Answers of the present stage so far, each with whether it was paid for in this run.
    """

    request: Request
    known: tuple[Completion, Origin] | None = None
    samples: tuple[tuple[Completion | Failure, bool], ...] = ()


class RequestCoder(beam.coders.Coder):
    """Pickles requests, but does not pickle them to estimate their size, which Beam does with each batch."""

    def encode(self, value: Request) -> bytes:
        """Returns the bytes of a request."""
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)

    def decode(self, encoded: bytes) -> Request:
        """Returns the request."""
        request: Request = pickle.loads(encoded)
        return request

    def estimate_size(self, value: Request) -> int:
        """Returns the size of the prompt, in characters; pickling took 5 to 8 µs, 6 % of the CPU time of a job."""
        return value.prompt.characters


beam.coders.registry.register_coder(Request, RequestCoder)


@value()
class AnsweredRow:
    """A row with its answer.

    Attributes:
        row: The row as read; until `restore_answers` masked, with its vault, if the job masks rows.
        fingerprint: Fingerprint of its prompt.
        completion: The answer.
        origin: Origin of the answer.
        moderation_input: What its prompt was flagged for; `None` for nothing.
        moderation_output: What its answer was flagged for.
        masked_row: The row for the dead letter, once `row` is restored; `None` if that is `row`.
        answered_by: Name of the stage of a cascade, or of `model`, that gave the answer; `None` for `model`, too.
    """

    row: Row
    fingerprint: str
    completion: Completion
    origin: Origin
    moderation_input: str | None = None
    moderation_output: str | None = None
    masked_row: Row | None = None
    answered_by: str | None = None


@value()
class FailedRow:
    """A row without an answer.

    Attributes:
        row: The row as read, masked if the job masks rows, or `{"llmbeam_raw": text}` when it could not be read.
        failure: Reason of the failure.
        origin: Origin of the failure, as that of an answer: the cost is counted with a `fresh` one.
    """

    row: Row
    failure: Failure
    origin: Origin = "fresh"


def failed_row(row: Row, kind: FailureKind, message: str) -> FailedRow:
    """Returns a row for which no request was made."""
    return FailedRow(row, Failure(kind=kind, message=message))


def refused_row(answered: AnsweredRow, failure: Failure) -> FailedRow:
    """Returns the failed row of an answer that is not published, with what the answer has cost.

    Args:
        answered: The row.
        failure: Why its answer is not published.
    """
    answer = answered.completion
    with_cost = replace(
        failure,
        **paid_for([answer]),
        began_at=answer.sent_at,
        failed_at=answer.answered_at,
        service_tier=answer.service_tier,
    )
    return FailedRow(answered.row, with_cost, "fresh" if answered.origin == "repaired" else answered.origin)
