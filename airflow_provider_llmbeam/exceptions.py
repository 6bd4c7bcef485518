"""Errors that this package raises deliberately.

    LLMBeamError
    +-- JobSpecError (ValueError)     before anything was sent or billed; a retry repeats it
    |   +-- SourceEmptyError          the source has no rows, or fewer than `source.min_rows`
    |   +-- SourceMissingError        no file of the source is there yet, and `source.on_missing` is 'retry'
    +-- CloudError (RuntimeError)     one request to Google Cloud failed; the job itself may be unaffected
    |   +-- CloudUnavailableError     no answer, 429 or 5xx; a retry may succeed
    |   +-- AccessDeniedError         no credentials, 401 or 403
    |   +-- CloudNotFoundError        404
    |   +-- RequestRefusedError       every other refusal
    +-- JobError (RuntimeError)       after the job started
    |   +-- JobFailedError            the job ended without a complete result; a retry resumes it
    |   |   +-- JobRefusedError       a provider refuses a request of the job; a retry repeats it
    |   +-- JobCancelledError         a user, or a limit on its time, ended the job
    |   +-- JobUnreachableError       the state of the job is no longer known; it may run and bill
    |   +-- BudgetExceededError       the answers cost more than `limits.budget_usd`; the job was cancelled
    |   +-- DriftError                the answers differ from those of earlier runs; the old output was kept
    |   +-- RowsLostError             rows in differ from answered + dead letter; the old output was kept
    |   +-- TooManyFailedRowsError    more rows failed than `max_dead_letter_ratio` allows; the old output was kept
    |       +-- NothingAnsweredError  every row failed, for the reason that the message quotes
    |       +-- PermanentFailureError they failed for reasons that a retry repeats
    |   +-- ModelUnavailableError     the model server is down, or answers no row
    +-- EndpointError (RuntimeError)  an endpoint with a GPU; the message names what still bills
        +-- EndpointFailedError       it did not start, and its resources were deleted
        |   +-- StockOutError         no location has the GPU, or the quota for it
        +-- EndpointRefusedError      it cannot start as specified; a retry repeats the error
        +-- StillBillingError         it could not be removed

The hierarchy is independent of Airflow: `operators/` turns `retryable = False` into a task that fails at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

#: An error of this package in a traceback, with the further lines of its message only if Beam marks their end.
_IN_TRACEBACK = re.compile(
    r"\bairflow_provider_llmbeam\.exceptions\.(?P<type>\w+): "
    r"(?:(?P<marked>(?:.+\n(?=\S))*?.+?)(?=\s*\[while running )|(?P<line>.+))"
)
#: The step that Beam appends to the message of an error.
_STEP = re.compile(r"\s*\[while running .*\s*\Z")


class LLMBeamError(Exception):
    """Base of all errors of this package.

    Attributes:
        page: Page of the report of the job that failed, see `manifest.encode_page`; `None` if it wrote none.
        report: Manifest of that report.
    """

    retryable: ClassVar[bool] = False
    page: dict[str, Any] | None = None
    report: dict[str, Any] | None = None


class JobSpecError(LLMBeamError, ValueError):
    """The job cannot run as specified; nothing was sent and nothing was billed, and the message says so."""

    remains: ClassVar[str] = "Nothing was sent or billed."

    def __init__(self, message: str) -> None:
        # An error that quotes another, was unpickled, or was read from a log has the sentence already.
        if self.remains[:-1] not in message:
            end = "" if message.endswith((".", "!", "?")) else "."
            message = f"{message}{end} {self.remains}"
        super().__init__(message)


class SourceEmptyError(JobSpecError):
    """The source has no rows, or fewer than `source.min_rows`; the old output was kept."""


class SourceMissingError(JobSpecError):
    """No file of the source is there yet; a retry may find it."""

    retryable = True


class CloudError(LLMBeamError, RuntimeError):
    """Google Cloud refused a request, or did not answer it."""


class CloudUnavailableError(CloudError):
    """Google Cloud did not answer, or asked to retry later."""

    retryable = True


class AccessDeniedError(CloudError):
    """There are no credentials, or they do not allow the request."""


class CloudNotFoundError(CloudError):
    """The request names something that does not exist."""


class RequestRefusedError(CloudError):
    """The request itself is wrong, for a reason that the message quotes."""


class JobError(LLMBeamError, RuntimeError):
    """The job started and did not finish."""

    retryable = True


class JobFailedError(JobError):
    """The job ended without a complete result; the journal keeps its answers."""


class JobRefusedError(JobFailedError):
    """The provider refuses the credentials, or a request of the job; its answers are kept."""

    retryable = False


class JobCancelledError(JobError):
    """The job was ended on purpose, so no retry starts it again; a clear resumes from the journal."""

    retryable = False


class JobUnreachableError(JobError):
    """The job could not be polled for so long that waiting ended; a retry finds it again."""


class BudgetExceededError(JobError):
    """The tokens counted so far cost more than `limits.budget_usd`; a clear resumes from the journal.

    Attributes:
        renewed_at: Unix time at which the budget begins anew; `None` if it does not.
    """

    retryable = False  # a retry would spend the same budget again without approval
    renewed_at: float | None = None


class RowsLostError(JobError):
    """Rows in differ from rows answered plus rows in the dead letter."""


class DriftError(JobError):
    """The answers differ from those of earlier runs by more than `alerts.drift_psi`; a retry repeats it."""

    retryable = False


class TooManyFailedRowsError(JobError):
    """More rows are in the dead letter than `limits.max_dead_letter_ratio` allows."""


class NothingAnsweredError(TooManyFailedRowsError):
    """Every row of a job that had rows is in the dead letter."""


class PermanentFailureError(TooManyFailedRowsError):
    """Too many rows, or the first ones, failed for a reason that a retry repeats, e.g. the limit of an answer."""

    retryable = False


class ModelUnavailableError(JobError):
    """The model server is down, or answers no row; a retry sends what is not in the journal."""


class EndpointError(LLMBeamError, RuntimeError):
    """An endpoint with a GPU could not be provisioned or removed."""

    retryable = True


class EndpointFailedError(EndpointError):
    """The endpoint did not start; its resources were deleted."""


class StockOutError(EndpointFailedError):
    """No location has the GPU available, or enough quota for this project; a later retry may succeed."""


class EndpointRefusedError(EndpointError):
    """The endpoint cannot start as specified because of its model, permissions or machine."""

    retryable = False


class StillBillingError(EndpointError):
    """The endpoint, or a part of it, could not be removed and is billed by the hour."""


def refusal(fault: str, remains: str) -> LLMBeamError:
    """Returns the error for what a retry repeats: a `JobSpecError` while nothing was sent.

    Args:
        fault: What was refused, and what to do.
        remains: What was sent or is kept; `JobSpecError.remains` if nothing was sent.
    """
    kind = JobSpecError if remains == JobSpecError.remains else JobRefusedError
    return kind(f"{fault} {remains}")


@contextmanager
def require_extra(part: str, extra: str, remains: str = JobSpecError.remains) -> Iterator[None]:
    """Converts the error of an import inside: the packages of an extra are missing.

    Args:
        part: What imports them, as the subject of a sentence.
        extra: The extra.
        remains: What was sent or is kept, see `refusal`.

    Raises:
        JobSpecError: An import failed; `JobRefusedError` with other `remains`.
    """
    try:
        yield
    except ImportError as error:
        raise refusal(
            f"{part} needs the extra {extra!r} where the job runs, on Dataflow in `runner.container_image` if "
            f"there is one: `pip install 'airflow-provider-llmbeam[{extra}]'` ({error}).",
            remains,
        ) from None


def error_class(name: str, default: type[LLMBeamError]) -> type[LLMBeamError]:
    """Returns the error class of this module with a given name, or `default` if there is none."""
    found = globals().get(name)
    return found if isinstance(found, type) and issubclass(found, LLMBeamError) else default


def error_name(error: LLMBeamError) -> str:
    """Returns the name by which `error_class` finds the class of an error, or the nearest one that it has."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == __name__)


def error_in(text: str) -> LLMBeamError | None:
    """Returns the last error of this package in the text of a traceback, or `None` if there is none.

    A runner reports an error of a worker in another process as text: Dataflow and Prism with the traceback, Flink
    with that of the root cause, and a local worker process as `RuntimeError(traceback)` (Beam 2.77).
    """
    if not (errors := [*_IN_TRACEBACK.finditer(text)]):
        return None
    found = errors[-1]
    return error_class(found["type"], JobFailedError)(without_step((found["marked"] or found["line"]).strip()))


def without_step(message: str) -> str:
    """Returns a message without the step that Beam appends, e.g. ` [while running 'Render']`."""
    return _STEP.sub("", message)
