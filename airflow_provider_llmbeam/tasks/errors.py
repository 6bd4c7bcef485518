"""Conversion of this package's errors to those of Airflow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_llmbeam.exceptions import LLMBeamError


@contextmanager
def errors_of_airflow() -> Iterator[None]:
    """Converts an error that a retry would repeat to one that Airflow does not retry."""
    try:
        yield
    except LLMBeamError as error:
        if error.retryable:
            raise
        raise AirflowFailException(str(error)) from error
