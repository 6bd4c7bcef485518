"""A request that makes something: what its refusal means."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_llmbeam.endpoints.fault import Fault, fault_of
from airflow_provider_llmbeam.exceptions import CloudError
from airflow_provider_llmbeam.google_cloud.errors import CloudRequest, cloud_error, translated


def refused(request: CloudRequest, make: Callable[[], str]) -> str | Fault | None:
    """Sends a request, and tells a refusal that will stay from one that a later try may not meet.

    Args:
        request: In words.
        make: Sends it, and returns the name of the operation.

    Returns:
        The operation; `None` where there is one of that name already; or why it was refused for good.

    Raises:
        CloudError: A later try may do.
    """
    from google.api_core import exceptions as api

    try:
        with translated(request):
            return make()
    except CloudError as error:
        cause = error.__cause__
        if isinstance(cause, api.Conflict):
            return None
        if not isinstance(cause, api.ClientError) or _is_rate(cause):
            raise
        fault = fault_of(int(cause.code or 400), str(cause.message))
        return fault if fault.falls_through else Fault(fault.kind, str(cloud_error(cause, request)))


def _is_rate(error: Exception) -> bool:
    """Whether it is the number of requests that is too high, and not that of GPUs."""
    words = str(error).lower()
    return getattr(error, "code", None) == 429 and ("per minute" in words or "requests" in words)
