"""Every error this package raises on purpose.

    LLMBeamError
    +-- JobSpecError (ValueError)     before anything was sent or billed; a retry repeats it
    +-- CloudError (RuntimeError)     one request to Google Cloud; says nothing of the fate of a job
    |   +-- CloudUnavailableError     no answer, 429 or 5xx; a retry may do
    |   +-- AccessDeniedError         no credentials, 401 or 403
    |   +-- CloudNotFoundError        404
    |   +-- RequestRefusedError       every other refusal
    +-- JobError (RuntimeError)       after the job started
    |   +-- JobFailedError            the job ended without a complete result; a retry resumes it
    |   +-- JobCancelledError         somebody, or a limit on its time, ended the job
    |   +-- JobUnreachableError       nothing is known of the job any more; it may run and bill
    |   +-- BudgetExceededError       the answers cost more than `limits.budget_usd`; the job was cancelled
    |   +-- RowsLostError             rows in is not answered + dead letter; the old output was kept
    |   +-- TooManyFailedRowsError  more rows failed than `max_dead_letter_ratio` allows; the old output was kept
    |       +-- NothingAnsweredError  every row failed, for the reason that the message quotes
    +-- EndpointError (RuntimeError)  an endpoint with a GPU; the message says what still bills
        +-- EndpointFailedError       it did not come up, and what was made is gone
        |   +-- StockOutError         no location has the GPU, or the quota for it
        +-- EndpointRefusedError      it cannot come up as asked for; a retry repeats that
        +-- StillBillingError         it could not be removed

The tree knows nothing of Airflow: `operators/` turns `retryable = False` into a task that fails at once.
"""

from __future__ import annotations

from typing import ClassVar


class LLMBeamError(Exception):
    """Base of all errors of this package."""

    retryable: ClassVar[bool] = False


class JobSpecError(LLMBeamError, ValueError):
    """The job as asked for cannot run; nothing was sent and nothing was billed."""


class CloudError(LLMBeamError, RuntimeError):
    """Google Cloud refused a request, or did not answer it."""


class CloudUnavailableError(CloudError):
    """No answer, or one that asks to come back later."""

    retryable = True


class AccessDeniedError(CloudError):
    """There are no credentials, or they do not allow the request."""


class CloudNotFoundError(CloudError):
    """The request names something that does not exist."""


class RequestRefusedError(CloudError):
    """The request itself is wrong, for a reason that the message quotes."""


class JobError(LLMBeamError, RuntimeError):
    """The job started and did not reach its end."""

    retryable = True


class JobFailedError(JobError):
    """The job ended without a complete result; what was answered is in the journal."""


class JobCancelledError(JobError):
    """The job was ended on purpose, so no retry starts it again; a clear goes on from the journal."""

    retryable = False


class JobUnreachableError(JobError):
    """The job could not be looked at for so long that waiting ended; a retry finds it again."""


class BudgetExceededError(JobError):
    """The tokens counted so far cost more than `limits.budget_usd`; a clear goes on from the journal."""

    retryable = False  # a retry would have the same budget once more, without anybody's say


class RowsLostError(JobError):
    """Rows in differ from rows answered plus rows in the dead letter."""


class TooManyFailedRowsError(JobError):
    """More rows are in the dead letter than `limits.max_dead_letter_ratio` allows."""


class NothingAnsweredError(TooManyFailedRowsError):
    """Every row of a job that had rows is in the dead letter."""


class EndpointError(LLMBeamError, RuntimeError):
    """An endpoint with a GPU did not do as it was asked to."""

    retryable = True


class EndpointFailedError(EndpointError):
    """The endpoint did not come up; what was made of it was deleted."""


class StockOutError(EndpointFailedError):
    """None of the locations has the GPU free, or allows this project so many; a later retry may find one."""


class EndpointRefusedError(EndpointError):
    """The endpoint cannot come up as it was asked for: model, permission or machine."""

    retryable = False


class StillBillingError(EndpointError):
    """The endpoint, or a part of it, could not be removed and bills by the hour."""


def error_class(name: str, default: type[LLMBeamError]) -> type[LLMBeamError]:
    """Returns the error class of this module with a given name, or `default` if there is none."""
    found = globals().get(name)
    return found if isinstance(found, type) and issubclass(found, LLMBeamError) else default
