"""Authentication of requests to Google: a key, or a token that is renewed in time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import google.auth
import requests
from google.auth import compute_engine, impersonated_credentials
from google.auth.credentials import Credentials, TokenState
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import Request
from google.oauth2 import service_account

from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.providers.http import FixedAccess
from airflow_provider_llmbeam.transport.redirects import redirect_behind, without_redirects
from airflow_provider_llmbeam.transport.token_errors import is_transient_token_error

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
#: A token that is rejected within this time is not renewed: a new one would be rejected, too.
_YOUNG_SECONDS = 60.0


class ApiKey(FixedAccess):
    """An API key of the Gemini Developer API."""

    def __init__(self, key: str) -> None:
        super().__init__({"x-goog-api-key": key})


class _Token:
    """A token that is renewed some minutes before it expires, in a thread, once for all requests."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._renewing = asyncio.Lock()
        self._renewed_at: float | None = None

    async def headers(self) -> dict[str, str]:
        """Returns the headers of a request.

        Raises:
            RequestError: The token service rejects the request, or cannot be reached.
        """
        if self._credentials.token_state is not TokenState.FRESH:
            async with self._renewing:
                if self._credentials.token_state is not TokenState.FRESH:
                    await self._renew()
        return self._headers()

    async def renewed(self, rejected: Mapping[str, str]) -> bool:
        """Renews a token that was rejected before it expired, unless another request has done so or it is new.

        Raises:
            RequestError: The token service rejects the request, or cannot be reached.
        """
        async with self._renewing:
            if self._headers() != rejected:
                return True
            if self._renewed_at is not None and time.monotonic() - self._renewed_at < _YOUNG_SECONDS:
                return False
            await self._renew()
        return True

    def _headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        self._credentials.apply(headers)  # type: ignore[no-untyped-call]
        return headers

    async def _renew(self) -> None:
        try:
            await asyncio.to_thread(self._credentials.refresh, _token_request())
        except GoogleAuthError as error:
            if (redirect := redirect_behind(error)) is not None:
                raise RequestError(
                    "unauthorized",
                    f"no token: {redirect}. If that is the right server, make it `token_uri` of the credentials.",
                ) from None
            message = f"no token: {type(error).__name__}: {error}"
            if is_transient_token_error(error):
                raise RequestError("connection", message, is_unconnected=True) from None
            raise RequestError("unauthorized", message) from None
        self._renewed_at = time.monotonic()


class BearerToken(_Token):
    """An access token of Application Default Credentials.

    Args:
        needed_by: Field of the spec that requires it.
        service: Name of the service.

    Raises:
        JobSpecError: There are no credentials.
    """

    def __init__(self, needed_by: str = "model.project", service: str = "Vertex AI") -> None:
        super().__init__(_default_credentials(f"{service} (`{needed_by}`)"))

    async def renewed(self, rejected: Mapping[str, str]) -> bool:
        """Returns `False`: the APIs of Google accept an access token until it expires."""
        return False


class IdToken(_Token):
    """An ID token of Application Default Credentials, for a service on Cloud Run.

    Args:
        audience: Address of the service.

    Raises:
        JobSpecError: There are no credentials, or they cannot issue ID tokens.
    """

    def __init__(self, audience: str) -> None:
        super().__init__(
            _id_token_credentials(_default_credentials("Cloud Run (`model.id_token_audience`)"), audience)
        )


def _token_request() -> Request:
    """Returns the transport of token requests, which carry an assertion or a refresh token."""
    return Request(without_redirects(requests.Session()))


def _default_credentials(needed_by: str) -> Credentials:
    try:
        found: Credentials = google.auth.default(scopes=[_SCOPE])[0]
    except GoogleAuthError as error:
        raise JobSpecError(f"{needed_by} needs Google credentials: {error} Nothing was sent or billed.") from error
    return found


def _id_token_credentials(found: Credentials, audience: str) -> Credentials:
    """Converts credentials to credentials that issue ID tokens.

    `google.oauth2.id_token.fetch_id_token` supports neither `gcloud auth application-default login
    --impersonate-service-account` nor names the credentials that it could not use.
    """
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
            try:
                return compute_engine.IDTokenCredentials(  # type: ignore[no-untyped-call]
                    _token_request(), audience, use_metadata_identity_endpoint=True
                )
            except GoogleAuthError as error:
                raise JobSpecError(
                    f"Cloud Run (`model.id_token_audience` {audience!r}) needs an ID token, and the metadata "
                    f"server of this machine does not answer: {error} Nothing was sent or billed."
                ) from error
    raise JobSpecError(
        f"Cloud Run (`model.id_token_audience` {audience!r}) needs an ID token of a service account, and the "
        f"Google credentials found here ({type(found).__module__}) are those of a user or of another cloud, which "
        "cannot issue one. Nothing was sent or billed. Run as a service account that may invoke the service "
        "(roles/run.invoker), or impersonate one: `gcloud auth application-default login "
        "--impersonate-service-account=EMAIL`."
    )
