"""How a job on Dataflow ended, in words and as an error."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_llmbeam import exceptions
from airflow_provider_llmbeam.dataflow.state_machine import JobEnded, JobOutcome
from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError, LLMBeamError
from airflow_provider_llmbeam.google_cloud.dataflow_job import JobAddress
from airflow_provider_llmbeam.polling.result import PollResult

#: Last line of a worker's traceback, where the error is one of ours. Beam adds where it came from.
_OUR_ERROR = re.compile(
    r"\bairflow_provider_llmbeam\.exceptions\.(?P<type>\w+): (?P<words>.+?)\s*(?:\[while running .*)?$",
    re.MULTILINE,
)
#: A line of a Flex Template's launcher that refuses a job. It has the time in front, and is not always passed on.
_REFUSAL = re.compile(r"^(?:\d\d:\d\d:\d\d )?(?P<words>\S.* Nothing was sent or billed\..*)$", re.MULTILINE)
_WHILE_RUNNING = re.compile(r"\s*\[while running .*$", re.MULTILINE)
#: Of lines that are no error of ours: how many are quoted, and how much of each.
_LAST_LINES = 5
_LINE_CHARACTERS = 500

_ERRORS = {
    "failed": "JobFailedError",
    "cancelled": "JobCancelledError",
    "over_budget": "BudgetExceededError",
    "unreachable": "JobUnreachableError",
}


@dataclass(frozen=True, slots=True)
class JobResult(PollResult):
    """The end of waiting; plain enough to travel in the event of a trigger.

    Attributes:
        outcome: `succeeded`, or why not.
        job_id: Of the job that was looked at last.
        state: That it was last seen in; empty where it never was.
        message: For people.
        error_type: Class of `exceptions`; `None` where the job succeeded.
    """

    outcome: JobOutcome
    job_id: str
    state: str
    message: str
    error_type: str | None = None

    @property
    def error(self) -> LLMBeamError | None:
        """What a task raises, or nothing."""
        return None if self.error_type is None else _error_class(self.error_type)(self.message)


def job_result(
    end: JobEnded, address: JobAddress, state: str, messages: Sequence[str], journal_uri: str
) -> JobResult:
    """Says how a job ended.

    Args:
        end: The decision.
        address: Of the job.
        state: That it was last seen in.
        messages: Its errors, the oldest first, where it failed.
        journal_uri: Directory of the answers so far.
    """
    who = f"Dataflow job {address.job_id!r}"
    if end.outcome == "succeeded":
        return JobResult(end.outcome, address.job_id, state, f"{who} {end.reason}")
    if end.outcome == "failed" and messages:
        error = failure(messages, who, journal_uri)
        return JobResult(end.outcome, address.job_id, state, str(error), type(error).__name__)
    error_type = _ERRORS[end.outcome]
    words = f"{who} {end.reason}"
    if end.may_run:
        words = f"{words} To end it: {address.cancel_command}."
    message = f"{words} {_kept(journal_uri, _error_class(error_type).retryable)}"
    return JobResult(end.outcome, address.job_id, state, message, error_type)


def failure(messages: Sequence[str], who: str, journal_uri: str) -> LLMBeamError:
    """Makes one error of what Dataflow says of a failed job.

    A bundle is tried four times before the job fails, so that the same lines come several times.

    Args:
        messages: Errors of the job, the oldest first; tracebacks of workers among them.
        who: What failed, e.g. "Dataflow job '…'".
        journal_uri: Directory of the answers so far.

    Returns:
        An error of our own class, where a worker or a launcher raised one; else a `JobFailedError` with the last
        lines.
    """
    for message in reversed(messages):
        if found := [*_OUR_ERROR.finditer(message)]:
            error_class = _error_class(found[-1]["type"])
            words = f"{who}: {found[-1]['words']}"
            # Ours mostly say it themselves.
            said = journal_uri in words
            return error_class(words if said else f"{words} {_kept(journal_uri, error_class.retryable)}")
    if refusal := _REFUSAL.search("\n".join(messages)):
        return JobSpecError(f"{who} was not submitted by its template: {refusal['words']}")
    last = dict.fromkeys(filter(None, map(_last_line, messages)))
    quoted = " | ".join(list(last)[-_LAST_LINES:]) or "Dataflow gives no reason."
    return JobFailedError(
        f"{who} failed. Its last errors: {quoted} {_kept(journal_uri, JobFailedError.retryable)}"
    )


def _last_line(message: str) -> str:
    lines = [line for line in _WHILE_RUNNING.sub("", message).splitlines() if line.strip()]
    return lines[-1].strip()[:_LINE_CHARACTERS] if lines else ""


def _error_class(name: str) -> type[LLMBeamError]:
    found = getattr(exceptions, name, None)
    return found if isinstance(found, type) and issubclass(found, LLMBeamError) else JobFailedError


def _kept(journal_uri: str, retryable: bool) -> str:
    again = "a retry" if retryable else "a cleared task"
    return f"What was answered is kept in {journal_uri!r}; {again} asks only for the rest."
