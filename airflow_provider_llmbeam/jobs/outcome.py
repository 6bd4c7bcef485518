"""Turns the end of a job on Dataflow or Flink into a message and an error."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError, LLMBeamError, error_class, error_in
from airflow_provider_llmbeam.jobs.client import SubmittedJob
from airflow_provider_llmbeam.jobs.state_machine import JobEnded, JobOutcome
from airflow_provider_llmbeam.polling.poller import PollResult

_WHILE_RUNNING = re.compile(r"\s*\[while running .*$", re.MULTILINE)
#: Limits on the quoted lines of other errors.
_MAX_LINES = 5
_MAX_LINE_CHARACTERS = 500

_ERRORS = {
    "failed": "JobFailedError",
    "cancelled": "JobCancelledError",
    "over_budget": "BudgetExceededError",
    "unreachable": "JobUnreachableError",
}


@dataclass(frozen=True, slots=True)
class JobResult(PollResult):
    """Result of a job.

    Attributes:
        outcome: `succeeded`, or how the job ended.
        job_id: Id of the job that was polled last.
        state: Last known state; empty if no poll succeeded.
    """

    default_error: ClassVar[type[LLMBeamError]] = JobFailedError

    outcome: JobOutcome
    job_id: str
    state: str


def job_result(ended: JobEnded, job: SubmittedJob, state: str, messages: Sequence[str]) -> JobResult:
    """Returns the result of a job.

    Args:
        ended: Decision of the state machine.
        job: The job that was polled last.
        state: Last known state.
        messages: Error messages of a failed job, the oldest first.
    """
    subject = f"{job.service} job {job.id!r}"
    message, error_type = f"{subject} {ended.reason}", None
    if ended.outcome == "failed" and messages:
        error = failure(messages, subject, job.journal_uri)
        message, error_type = str(error), type(error).__name__
    elif ended.outcome != "succeeded":
        error_type = _ERRORS[ended.outcome]
        if ended.may_run:
            message = f"{message} To cancel it: {job.cancel_command}."
        message = f"{message} {_kept(job.journal_uri, error_class(error_type, JobFailedError).retryable)}"
    return JobResult(ended.outcome, job.id, state, message=message, error_type=error_type)


def failure(messages: Sequence[str], subject: str, journal_uri: str) -> LLMBeamError:
    """Turns the error messages of a failed job into one error.

    Beam tries a bundle four times before the job fails, so each message occurs several times.

    Args:
        messages: Error messages of the job, the oldest first, including tracebacks of workers.
        subject: Subject of the message, e.g. "Dataflow job '…'".
        journal_uri: Directory of the answers so far.

    Returns:
        The error of this package that a worker or a launcher raised; otherwise a `JobFailedError` with the last
        lines.
    """
    for message in reversed(messages):
        if error := error_in(message):
            message = f"{subject}: {error}"
            # Most errors of this package name the journal already; without a request nothing is new there.
            if journal_uri not in message and JobSpecError.remains[:-1] not in message:
                message = f"{message} {_kept(journal_uri, error.retryable)}"
            return type(error)(message)
    last = dict.fromkeys(filter(None, map(_last_line, messages)))
    quoted = " | ".join(list(last)[-_MAX_LINES:]) or "Dataflow gives no reason."
    return JobFailedError(
        f"{subject} failed. Its last errors: {quoted} {_kept(journal_uri, JobFailedError.retryable)}"
    )


def _last_line(message: str) -> str:
    lines = [line for line in _WHILE_RUNNING.sub("", message).splitlines() if line.strip()]
    return lines[-1].strip()[:_MAX_LINE_CHARACTERS] if lines else ""


def _kept(journal_uri: str, retryable: bool) -> str:
    again = "a retry" if retryable else "a cleared task"
    return f"The answers so far are kept in {journal_uri!r}; {again} sends only the rest."
