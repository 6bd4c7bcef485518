"""Conversion of this package's errors to those of Airflow."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException, mask_secret

from airflow_provider_llmbeam.exceptions import JobSpecError, LLMBeamError, StillBillingError
from airflow_provider_llmbeam.redaction import redact, secrets_of

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator


@contextmanager
def errors_of_airflow(task: BaseOperator | None = None) -> Iterator[None]:
    """Converts an error that a retry would repeat to one that Airflow does not retry; redacts its message.

    Airflow logs the causes of an error as well. It masks the secrets of connections in them, and is told those of
    the proxies.

    Args:
        task: Task that asks a model, whose endpoint may be up.
    """
    proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    for secret in secrets_of(proxies):
        mask_secret(secret)
    try:
        yield
    except LLMBeamError as error:
        error.args = (redact(_with_endpoint(str(error), task)),)
        if error.retryable:
            raise
        raise AirflowFailException(str(error)) from error


def _with_endpoint(message: str, task: BaseOperator | None) -> str:
    """Returns the message of a task, which does not say that nothing is billed while its endpoint is up."""
    if task is None or JobSpecError.remains not in message:
        return message
    from airflow_provider_llmbeam.operators.endpoint import TeardownEndpointOperator

    model = getattr(task, "model", None)
    for one in task.get_flat_relatives(upstream=False):
        if issubclass(getattr(one, "operator_class", type(one)), TeardownEndpointOperator):
            name = (model.get("endpoint") or model.get("base_url")) if isinstance(model, Mapping) else None
            up = f"Nothing was sent. Endpoint {name!r} is up and bills until task {one.task_id!r} removes it."
            return message.replace(JobSpecError.remains, up)
    return message


@contextmanager
def retry_failed_reads(gcp_conn_id: str, left: str, again: str) -> Iterator[None]:
    """Turns an error of reading what a removal needs into one that is retried and names what may be billing.

    Airflow answers alike for a connection that does not exist and one that a secrets backend failed to return
    (`airflow.sdk.execution_time.context._get_connection` in Airflow 3.3.2), so neither is final.

    Args:
        gcp_conn_id: Airflow connection that the removal reads.
        left: What may be billing, as the start of a sentence.
        again: Sentence about what tries again.
    """
    try:
        yield
    except Exception as error:
        reason = (str(error) or type(error).__name__).rstrip(".")
        raise StillBillingError(
            f"{left} may still be billing, as nothing was looked for or removed: the connection {gcp_conn_id!r} "
            f"(`gcp_conn_id`) or the recorded project could not be read: {reason}. If the connection exists, the "
            f"secrets backend or the API server of Airflow may have failed for a moment. {again}"
        ) from error


def unless_skipped(manifest: dict[str, Any]) -> dict[str, Any]:
    """Returns the manifest of a job that published its answers.

    Raises:
        AirflowSkipException: The job published nothing, as its source has no rows.
    """
    if (reason := manifest.get("skipped_because")) is not None:
        raise AirflowSkipException(reason)
    return manifest
