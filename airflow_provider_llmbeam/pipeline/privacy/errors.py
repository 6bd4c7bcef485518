"""Errors whose messages may quote personal data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_llmbeam.exceptions import JobFailedError, LLMBeamError
from airflow_provider_llmbeam.pipeline.privacy.masker import masker_of
from airflow_provider_llmbeam.spec.job import JobSpec


@contextmanager
def errors_masked(spec: JobSpec) -> Iterator[None]:
    """Masks the messages of errors of the body: a sink is given plain values, and its server may quote one.

    Raises:
        LLMBeamError: The error of the body, with a message that has no personal data.
        JobFailedError: Another error of the body whose message has some.
    """
    try:
        yield
    except Exception as error:
        masker = masker_of(spec)
        text = str(error)
        if masker is None or (message := masker.message(text)) == text:
            raise
        if not isinstance(error, LLMBeamError):
            raise JobFailedError(f"{type(error).__name__}: {message}") from None
        error.args = (message,)
        raise error from None
