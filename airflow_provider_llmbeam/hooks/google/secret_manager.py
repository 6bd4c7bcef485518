"""Reads secrets of Secret Manager."""

from __future__ import annotations

from airflow.providers.common.compat.sdk import mask_secret

from airflow_provider_llmbeam.exceptions import AccessDeniedError, CloudNotFoundError, JobSpecError
from airflow_provider_llmbeam.hooks.google.base import REQUEST_SECONDS, GoogleHook, retry
from airflow_provider_llmbeam.hooks.google.errors import CloudRequest, translated, usable_connection
from airflow_provider_llmbeam.transport.redirects import direct


def read_secret(hook: GoogleHook, version: str) -> str:
    """Reads a version of a secret, which Airflow masks in logs.

    Args:
        hook: Hook with the credentials.
        version: Resource name, `projects/…/secrets/…/versions/…`.

    Raises:
        JobSpecError: The secret does not exist, or the account may not read it; nothing is billed.
        CloudError: See `google_cloud.errors`.
    """
    from google.cloud.secretmanager_v1 import SecretManagerServiceClient

    request = CloudRequest(
        action=f"show secret {version!r}",
        project=version.split("/")[1],
        service="secretmanager.googleapis.com",
        role="roles/secretmanager.secretAccessor",
        missing=f"secret {version!r}",
    )
    with usable_connection(hook.gcp_conn_id):
        credentials = hook.get_credentials()
    try:
        with translated(request):
            client = direct(
                SecretManagerServiceClient(
                    credentials=credentials, transport="rest", client_options=hook.get_client_options()
                )
            )
            reply = client.access_secret_version(name=version, retry=retry(), timeout=REQUEST_SECONDS)
            secret = str(reply.payload.data.decode()).strip()
            mask_secret(secret)
            return secret
    except (AccessDeniedError, CloudNotFoundError) as error:
        raise JobSpecError(f"`hf_token_secret`: {error} Nothing was started or billed.") from error
