"""Access tokens and ID tokens for plain HTTP requests."""

from __future__ import annotations

from typing import Any

from requests import Session

from airflow_provider_llmbeam.exceptions import AccessDeniedError
from airflow_provider_llmbeam.hooks.google.sessions import with_shared_connections


def token_request() -> Any:
    """Returns the transport with which credentials fetch a token."""
    from google.auth.transport.requests import Request

    return Request(with_shared_connections(Session()))


def access_token(credentials: Any) -> str:
    """Returns a valid access token for Google's own services."""
    if not credentials.valid:
        credentials.refresh(token_request())
    return str(credentials.token)


def id_token(credentials: Any, audience: str) -> str:
    """Returns an ID token for one service on Cloud Run.

    Args:
        credentials: Credentials of a service account, direct or impersonated.
        audience: URL of the service.

    Raises:
        AccessDeniedError: The credentials are those of a user, who cannot have such tokens.
    """
    source = _id_token_credentials(credentials, audience)
    if source is None:
        raise AccessDeniedError(
            f"Cloud Run requires an ID token of a service account, and the credentials are of type "
            f"{type(credentials).__name__}. Give the Airflow connection a service account, or name one in "
            "`impersonation_chain`."
        )
    source.refresh(token_request())
    return str(source.token)


def _id_token_credentials(credentials: Any, audience: str) -> Any:
    from google.auth import compute_engine, impersonated_credentials
    from google.oauth2 import service_account

    if isinstance(credentials, impersonated_credentials.Credentials):
        return impersonated_credentials.IDTokenCredentials(  # type: ignore[no-untyped-call]
            credentials, target_audience=audience, include_email=True
        )
    if isinstance(credentials, service_account.Credentials):
        return service_account.IDTokenCredentials(  # type: ignore[no-untyped-call]
            credentials.signer,
            service_account_email=credentials.service_account_email,
            token_uri=credentials._token_uri,
            target_audience=audience,
        )
    if isinstance(credentials, compute_engine.Credentials):
        return compute_engine.IDTokenCredentials(  # type: ignore[no-untyped-call]
            token_request(), audience, use_metadata_identity_endpoint=True
        )
    return None
