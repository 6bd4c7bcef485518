"""Errors of the providers' APIs beside their models: batch inference, files, cached contents.

    JobFailedError
    +-- ApiError                      the API did not do what was asked for
        +-- ApiUnavailableError       no answer, 408, 425, 429, 499 or 5xx; the same request may succeed later
        |   +-- ApiConflictError      409
        +-- ApiDeniedError            no credentials, 401 or 403; a `JobRefusedError` as well
        +-- ApiNotFoundError          404
        +-- ApiRefusedError           every other refusal; a `JobRefusedError` as well
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


class ApiError(JobFailedError):
    """An API of a provider did not do what was asked for."""


class ApiUnavailableError(ApiError):
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


class ApiConflictError(ApiUnavailableError):
    """A 409: the name is taken, the job has ended, or another request is in the way, which alone passes."""


class ApiDeniedError(JobRefusedError, ApiError):
    """There are no credentials, or they do not allow the request.

    Attributes:
        http_status: HTTP status; `None` if no request was sent.
    """

    def __init__(self, message: str, *, http_status: int | None = None) -> None:
        super().__init__(message)
        self.http_status = http_status


class ApiNotFoundError(ApiError):
    """The job or the file does not exist."""


class ApiRefusedError(JobRefusedError, ApiError):
    """The request itself is wrong, for a reason that the message quotes."""


class BatchQuotaError(ApiError):
    """The provider accepts no further job, or no more tokens, until another job ends. No job was created."""


class UncertainSubmitError(ApiError):
    """The provider may have created the job; look it up by its display name before submitting it again."""
