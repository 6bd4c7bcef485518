"""Our errors as Airflow's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_llmbeam.exceptions import LLMBeamError


@contextmanager
def errors_of_airflow() -> Iterator[None]:
    """Turns an error that a retry repeats into one that Airflow does not retry."""
    try:
        yield
    except LLMBeamError as error:
        if error.retryable:
            raise
        raise AirflowFailException(str(error)) from error
