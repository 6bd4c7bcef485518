"""Credentials of Google, the tokens that they give, and the errors of requests for them.

Google's clients are imported where they are used: a Dag file loads none.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow_provider_llmbeam.exceptions import JobSpecError

if TYPE_CHECKING:
    from google.auth.credentials import Credentials
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import Request

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
#: A token that is rejected within this time is not renewed: a new one would be rejected, too.
_YOUNG_SECONDS = 60.0


class GoogleToken:
    """Authentication headers with a token, which is renewed some minutes before it expires. Thread-safe; blocks.

    Every method raises a `GoogleAuthError` if the token service rejects the request, or cannot be reached.

    Args:
        credentials: Credentials that give the token.
        request: Transport of token requests.
        renews_rejected: Whether a new token may be accepted where this one was rejected. Google's own APIs
            accept an access token until it expires.
    """

    def __init__(
        self, credentials: Credentials, request: Request | None = None, *, renews_rejected: bool = False
    ) -> None:
        self._credentials = credentials
        self._request = request or token_request()
        self._renews_rejected = renews_rejected
        self._lock = threading.Lock()
        self._renewed_at: float | None = None

    @property
    def is_fresh(self) -> bool:
        """Whether `headers` returns without a request."""
        return str(self._credentials.token_state.name) == "FRESH"

    def headers(self) -> dict[str, str]:
        """Returns the headers of a request."""
        if not self.is_fresh:
            with self._lock:
                if not self.is_fresh:
                    self._renew()
        return self._headers()

    def renew(self, rejected: Mapping[str, str]) -> bool:
        """Renews a rejected token, unless another request has done so, or it is new.

        Returns:
            Whether there is another one.
        """
        if not self._renews_rejected:
            return False
        with self._lock:
            if self._headers() != rejected:
                return True
            if self._renewed_at is not None and time.monotonic() - self._renewed_at < _YOUNG_SECONDS:
                return False
            self._renew()
        return True

    def _headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        self._credentials.apply(headers)  # type: ignore[no-untyped-call]
        return headers

    def _renew(self) -> None:
        self._credentials.refresh(self._request)  # type: ignore[no-untyped-call]
        self._renewed_at = time.monotonic()


def token_request() -> Request:
    """Returns the transport of token requests, which carry an assertion or a refresh token."""
    import requests
    from google.auth.transport.requests import Request

    from airflow_provider_llmbeam.transport.redirects import without_redirects

    return Request(without_redirects(requests.Session()))


def default_credentials(needed_by: str, audience: str | None = None) -> Credentials:
    """Returns Application Default Credentials.

    Args:
        needed_by: What needs them, for the error.
        audience: Address of a service on Cloud Run, for credentials that give ID tokens.

    Raises:
        JobSpecError: There are no credentials, or they cannot give ID tokens.
    """
    import google.auth
    from google.auth.exceptions import GoogleAuthError

    try:
        found: Credentials = google.auth.default(scopes=[_SCOPE])[0]
    except GoogleAuthError as error:
        raise JobSpecError(f"{needed_by} needs Google credentials: {error}") from error
    if audience is None:
        return found
    try:
        made = id_token_credentials(found, audience, token_request())
    except GoogleAuthError as error:
        raise JobSpecError(
            f"Cloud Run (`model.id_token_audience` {audience!r}) needs an ID token, and the metadata server of "
            f"this machine does not answer: {error}"
        ) from error
    if made is None:
        raise JobSpecError(
            f"Cloud Run (`model.id_token_audience` {audience!r}) needs an ID token of a service account, and the "
            f"Google credentials found here ({type(found).__module__}) are those of a user or of another cloud, "
            "which cannot issue one. Run as a service account that may invoke the "
            "service (roles/run.invoker), or impersonate one: `gcloud auth application-default login "
            "--impersonate-service-account=EMAIL`."
        )
    return made


def id_token_credentials(found: Credentials, audience: str, request: Request) -> Credentials | None:
    """Converts credentials to credentials that give ID tokens; `None` for those of a user or of another cloud.

    `google.oauth2.id_token.fetch_id_token` supports neither `gcloud auth application-default login
    --impersonate-service-account` nor names the credentials that it could not use.

    Raises:
        GoogleAuthError: The metadata server of this machine does not answer.
    """
    from google.auth import compute_engine, impersonated_credentials
    from google.oauth2 import service_account

    match found:
        case service_account.Credentials():
            return service_account.IDTokenCredentials(  # type: ignore[no-untyped-call]
                found.signer, found.service_account_email, found._token_uri, audience
            )
        case impersonated_credentials.Credentials():
            return impersonated_credentials.IDTokenCredentials(  # type: ignore[no-untyped-call]
                found, target_audience=audience, include_email=True
            )
        case compute_engine.Credentials():
            return compute_engine.IDTokenCredentials(  # type: ignore[no-untyped-call]
                request, audience, use_metadata_identity_endpoint=True
            )
    return None


def is_transient_token_error(error: GoogleAuthError) -> bool:
    """Whether a repeated token request may succeed: the service was not reached, or answered with a 5xx or a 429.

    The credentials of a Google Cloud machine raise a `RefreshError` for every fault of the metadata server, around
    the `TransportError`. That of a refusal, e.g. a 404 of a machine without a service account, has the response as
    its last argument. Source: google.auth.compute_engine (google-auth 2.x)
    """
    from google.auth.exceptions import TransportError

    if error.retryable:
        return True
    fault = error if isinstance(error, TransportError) else error.__cause__
    if not isinstance(fault, TransportError):
        return False
    status = getattr(fault.args[-1] if fault.args else None, "status", None)
    return status is None or status in (408, 429) or status >= 500
