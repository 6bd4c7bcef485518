"""Separates refusals of a create request that are final from those that a retry may pass."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_llmbeam.endpoints.fault import Fault, fault_of
from airflow_provider_llmbeam.exceptions import CloudError


def operation_or_fault(create: Callable[[], str]) -> str | Fault | None:
    """Sends a create request.

    Args:
        create: Sends the request and returns the name of the operation.

    Returns:
        The operation; `None` if the resource exists already; or the fault if the refusal is final.

    Raises:
        CloudError: A later request may succeed.
    """
    from google.api_core import exceptions as api

    try:
        return create()
    except CloudError as error:
        cause = error.__cause__
        if isinstance(cause, api.Conflict):
            return None
        if not isinstance(cause, api.ClientError) or _is_rate_limit(cause):
            raise
        fault = fault_of(int(cause.code or 400), str(cause.message))
        return fault if fault.is_location_specific else Fault(fault.kind, str(error))


def is_refusal(error: BaseException) -> bool:
    """Whether the service, or the lack of credentials, refused a request, so that it started nothing."""
    from google.api_core import exceptions as api
    from google.auth import exceptions as auth

    return isinstance(error.__cause__, (api.ClientError, auth.GoogleAuthError))


def _is_rate_limit(error: Exception) -> bool:
    """Whether the quota of requests was exceeded, not that of GPUs."""
    message = str(error).lower()
    return getattr(error, "code", None) == 429 and ("per minute" in message or "requests" in message)
