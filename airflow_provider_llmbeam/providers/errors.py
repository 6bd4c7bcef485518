"""Errors of the providers' batch-inference APIs.

    JobFailedError
    +-- BatchError                    the API did not do what was asked for
        +-- BatchUnavailableError     no answer, 408, 425, 429, 499 or 5xx; the same request may succeed later
        |   +-- BatchConflictError    409
        +-- BatchDeniedError          no credentials, 401 or 403; a `JobRefusedError` as well
        +-- BatchNotFoundError        404
        +-- BatchRefusedError         every other refusal; a `JobRefusedError` as well
        +-- BatchQuotaError           no further job or tokens until another job ends
        +-- UncertainSubmitError      a job may have been created

What is refused before there is a job is a `JobSpecError`.
"""

from __future__ import annotations

from airflow_provider_llmbeam.exceptions import JobFailedError, JobRefusedError


class BatchPendingError(Exception):
    """Batch inference has not ended, and its caller waits without this process. Nothing is wrong.

    Attributes:
        wait_seconds: Time after which to poll again, in seconds.
    """

    def __init__(self, wait_seconds: float) -> None:
        super().__init__(f"Batch inference has not ended; poll again in {wait_seconds:.0f} s.")
        self.wait_seconds = wait_seconds


class BatchError(JobFailedError):
    """The batch-inference API of a provider did not do what was asked for."""


class BatchUnavailableError(BatchError):
    """The API did not answer, or asked to retry later.

    Attributes:
        http_status: HTTP status; `None` if there was no answer.
        retry_after_seconds: Advised wait, in seconds; `None` without advice.
        was_processed: Whether the request may have been processed: no for 429, and if no connection was made.
    """

    def __init__(
        self,
        message: str,
        *,
        http_status: int | None = None,
        retry_after_seconds: float | None = None,
        was_processed: bool = True,
    ) -> None:
        super().__init__(message)
        self.http_status = http_status
        self.retry_after_seconds = retry_after_seconds
        self.was_processed = was_processed


class BatchConflictError(BatchUnavailableError):
    """A 409: the name is taken, the job has ended, or another request is in the way, which alone passes."""


class BatchDeniedError(JobRefusedError, BatchError):
    """There are no credentials, or they do not allow the request.

    Attributes:
        http_status: HTTP status; `None` if no request was sent.
    """

    def __init__(self, message: str, *, http_status: int | None = None) -> None:
        super().__init__(message)
        self.http_status = http_status


class BatchNotFoundError(BatchError):
    """The job or the file does not exist."""


class BatchRefusedError(JobRefusedError, BatchError):
    """The request itself is wrong, for a reason that the message quotes."""


class BatchQuotaError(BatchError):
    """The provider accepts no further job, or no more tokens, until another job ends. No job was created."""


class UncertainSubmitError(BatchError):
    """The provider may have created the job; look it up by its display name before submitting it again."""
