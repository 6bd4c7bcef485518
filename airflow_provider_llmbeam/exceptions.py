"""Every error this package raises on purpose.

    LLMBeamError
    +-- JobSpecError (ValueError)     before anything was sent or billed; a retry repeats it
    +-- JobError (RuntimeError)       after the job started
        +-- JobFailedError            the job ended without a complete result; a retry resumes it
        +-- BudgetExceededError       the tokens counted so far cost more than `limits.budget_usd`
        +-- RowsLostError             rows in is not answered + dead letter; the old output was kept
        +-- TooManyDeadError          more rows failed than `max_dead_letter_ratio` allows; the old output was kept
            +-- NothingAnsweredError  every row failed, for the reason that the message quotes

The tree knows nothing of Airflow: `operators/` turns `retryable = False` into a task that fails at once.
"""

from __future__ import annotations

from typing import ClassVar


class LLMBeamError(Exception):
    """Base of all errors of this package."""

    retryable: ClassVar[bool] = False


class JobSpecError(LLMBeamError, ValueError):
    """The job as asked for cannot run; nothing was sent and nothing was billed."""


class JobError(LLMBeamError, RuntimeError):
    """The job started and did not reach its end."""

    retryable = True


class JobFailedError(JobError):
    """The job ended without a complete result; what was answered is in the journal."""


class BudgetExceededError(JobError):
    """The tokens counted so far cost more than `limits.budget_usd`."""

    retryable = False  # a retry would have the same budget once more, without anybody's say


class RowsLostError(JobError):
    """Rows in differ from rows answered plus rows in the dead letter."""


class TooManyDeadError(JobError):
    """More rows are in the dead letter than `limits.max_dead_letter_ratio` allows."""


class NothingAnsweredError(TooManyDeadError):
    """Every row of a job that had rows is in the dead letter."""
