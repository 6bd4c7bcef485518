"""Errors of requests for an access token of Google."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.auth.exceptions import GoogleAuthError


def is_transient_token_error(error: GoogleAuthError) -> bool:
    """Whether a repeated token request may succeed: the service was not reached, or answered with a 5xx or a 429.

    The credentials of a Google Cloud machine raise a `RefreshError` for every fault of the metadata server, around
    the `TransportError`. That of a refusal, e.g. a 404 of a machine without a service account, has the response as
    its last argument. Source: google.auth.compute_engine (google-auth 2.x)
    """
    # Imported here, as a Dag file loads no Google client.
    from google.auth.exceptions import TransportError

    if error.retryable:
        return True
    fault = error if isinstance(error, TransportError) else error.__cause__
    if not isinstance(fault, TransportError):
        return False
    status = getattr(fault.args[-1] if fault.args else None, "status", None)
    return status is None or status in (408, 429) or status >= 500
