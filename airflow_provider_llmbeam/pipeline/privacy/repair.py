"""Repair of an answer in which the model altered a placeholder, by one more request."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from airflow_provider_llmbeam.engine.bill import paid_for
from airflow_provider_llmbeam.engine.outcome import Completion, Failure, Outcome
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow, FailedRow
from airflow_provider_llmbeam.pipeline.privacy.placeholder import Returned
from airflow_provider_llmbeam.pipeline.privacy.usage import returned_of

#: Origins of answers whose cost is counted with their row.
_COUNTED = ("fresh", "repaired")


def repair_fingerprint(fingerprint: str) -> str:
    """Returns the fingerprint of the repair of a prompt.

    It follows from that of the prompt, whatever was altered: `llmbeam forget` finds both.
    """
    return hashlib.sha256(f"repair of altered placeholders\n{fingerprint}".encode()).hexdigest()


def repair_text(text: str, found: Returned) -> str:
    """Returns the text of a prompt with the request to copy the placeholders.

    Args:
        text: Text of the prompt.
        found: What the first answer has of its placeholders.
    """
    return (
        f"{text}\n\nAn earlier answer to this was refused, as it changed these placeholders: "
        f"{', '.join(found.originals)}\n"
        "Answer again, and copy each placeholder exactly as it is above, from < to >."
    )


def repaired(first: AnsweredRow, repair: Outcome, *, is_counted: bool) -> AnsweredRow | FailedRow:
    """Returns the row of an answer that was to be repaired.

    Args:
        first: The row with the answer that has an altered placeholder.
        repair: Outcome of the further request.
        is_counted: Whether that request was made in this run, and is counted with this row.
    """
    paid: list[Outcome] = [first.completion, repair]
    if is_counted != (first.origin in _COUNTED):  # what other rows or earlier runs have counted is not this row's
        paid = [repair] if is_counted else [first.completion]
    if isinstance(repair, Failure):
        message = f"the answer had an altered placeholder, and its repair failed: {repair.message}"
        return _failed(first, replace(repair, message=message), paid, is_counted=is_counted)
    answer = replace(
        repair,
        **paid_for(paid),
        repairs=first.completion.repairs + 1 + repair.repairs,
        sent_at=min(each.sent_at for each in paid if isinstance(each, Completion)),
    )
    answered = replace(first, completion=answer, origin="repaired" if is_counted else first.origin)
    if not (found := returned_of(answered)).altered:
        return answered
    return altered_row(answered, found, "a repair was asked for", paid, is_counted=is_counted)


def altered_row(
    answered: AnsweredRow, found: Returned, action: str, paid: Sequence[Outcome] = (), *, is_counted: bool = False
) -> FailedRow:
    """Returns the failed row of an answer with an altered placeholder.

    Args:
        answered: The row.
        found: What the answer has of the placeholders.
        action: What was done because of it, for the message.
        paid: Outcomes whose cost is that of the failure; by default that of the answer.
        is_counted: Whether a further request of this run is counted with this row.
    """
    answer = answered.completion
    failure = Failure(
        kind="invalid_output",
        message=(
            f"the model altered a placeholder of personal data in its answer: {found.first_altered!r}; {action}. "
            "The answer stays in the journal, so that it is not paid again"
        ),
        http_status=200,
        answered_at=answer.answered_at,
        failed_at=answer.answered_at,
        service_tier=answer.service_tier,
    )
    return _failed(answered, failure, paid or [answer], is_counted=is_counted)


def _failed(row: AnsweredRow, failure: Failure, paid: Sequence[Outcome], *, is_counted: bool) -> FailedRow:
    origin = "fresh" if is_counted or row.origin in _COUNTED else row.origin
    return FailedRow(row.row, replace(failure, **paid_for(paid)), origin)
