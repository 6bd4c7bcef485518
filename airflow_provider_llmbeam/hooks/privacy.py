"""Passes the secret of an Airflow connection to a job that masks personal data, in its environment."""

from __future__ import annotations

from airflow.providers.common.compat.sdk import AirflowNotFoundException, mask_secret
from airflow.sdk import BaseHook

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.safety import Privacy


def privacy_environment(privacy: Privacy | None) -> dict[str, str]:
    """Returns the environment variable with the secret of `privacy.key_conn_id`: the spec holds no secret.

    Airflow masks the secret in logs.

    Returns:
        No variable if no connection is named.

    Raises:
        JobSpecError: The connection does not exist, or has no password.
    """
    if privacy is None or privacy.key_conn_id is None:
        return {}
    name = privacy.key_conn_id
    try:
        secret = BaseHook.get_connection(name).password
    except AirflowNotFoundException as error:
        raise JobSpecError(
            f"`safety.privacy.key_conn_id`: there is no connection {name!r}. Nothing was sent or billed. Add it "
            "under Admin, Connections, with the secret as its password."
        ) from error
    if not secret:
        raise JobSpecError(
            f"`safety.privacy.key_conn_id`: connection {name!r} has no password. Expected the secret from which "
            "the key of the placeholders is derived. Nothing was sent or billed."
        )
    mask_secret(secret)
    return {privacy.key_env: secret}
