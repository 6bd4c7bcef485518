"""Conversion of this package's errors to those of Airflow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException, mask_secret

from airflow_provider_llmbeam.exceptions import LLMBeamError
from airflow_provider_llmbeam.redaction import redact, secrets_of


@contextmanager
def errors_of_airflow() -> Iterator[None]:
    """Converts an error that a retry would repeat to one that Airflow does not retry; redacts its message.

    Airflow logs the causes of an error as well. It masks the secrets of connections in them, and is told those of
    the proxies.
    """
    proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    for secret in secrets_of(proxies):
        mask_secret(secret)
    try:
        yield
    except LLMBeamError as error:
        error.args = (redact(str(error)),)
        if error.retryable:
            raise
        raise AirflowFailException(str(error)) from error


def unless_skipped(manifest: dict[str, Any]) -> dict[str, Any]:
    """Returns the manifest of a job that published its answers.

    Raises:
        AirflowSkipException: The job published nothing, as its source has no rows.
    """
    if (reason := manifest.get("skipped_because")) is not None:
        raise AirflowSkipException(reason)
    return manifest
