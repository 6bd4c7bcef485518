"""The error of a job that failed, whether its workers run in this process or elsewhere."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError, LLMBeamError, error_in, without_step
from airflow_provider_llmbeam.pipeline.launch.interruption import raise_if_signalled
from airflow_provider_llmbeam.providers.errors import BatchPendingError
from airflow_provider_llmbeam.spec.job import JobSpec

_log = logging.getLogger("llmbeam")

#: Limit on the quoted words of another error: Prism quotes the stacks of its own threads.
_MAX_CHARACTERS = 500


@contextmanager
def errors_of_job(spec: JobSpec) -> Iterator[None]:
    """Raises the errors of a pipeline of a job as those of this package.

    Raises:
        LLMBeamError: The error of this package that ended the pipeline, or `JobFailedError`.
        KeyboardInterrupt: It was interrupted, which Beam converts.
    """
    try:
        yield
    except BatchPendingError:
        raise
    except Exception as error:
        cause = root(error)
        if isinstance(cause, KeyboardInterrupt):
            raise cause from None
        raise_if_signalled()
        if own := own_error(error):
            raise own from None
        # Beam re-raises through some thirty frames of its own; the last frames locate the error.
        _log.error("%s", "".join(traceback.format_exception(cause, limit=-4, chain=False)).rstrip())
        raise JobFailedError(
            f"Job {spec.name!r} failed: {sentence(error)} The answers so far are in {spec.paths.journal_uri!r}; a "
            "retry sends only the rest."
        ) from error


def own_error(error: BaseException) -> LLMBeamError | None:
    """Returns the error of this package that ended a job, or `None` if another one did.

    It is in the chain of an error of this process, and in the text of an error from another one: Prism, Flink
    and the local runner with worker processes raise a `RuntimeError` with the traceback of the worker (Beam 2.77).
    """
    cause = root(error)
    if isinstance(cause, LLMBeamError):
        message = str(cause)
        # Beam made an error of the same class for the message with the step.
        return cause if without_step(message) == message else type(cause)(without_step(message))
    return next(filter(None, map(error_in, map(str, _chain(error)))), None)


def sentence(error: BaseException) -> str:
    """Returns class and message of an error as one sentence; of a traceback of another process the last line."""
    cause = root(error)
    text = without_step(str(cause)).rstrip()
    is_traceback = "Traceback (most recent call last)" in text
    text = text.rpartition("\n")[2] if is_traceback else f"{type(cause).__name__}: {text}"
    text = " ".join(text.split())[:_MAX_CHARACTERS]
    return text if text.endswith((".", "!", "?")) else f"{text}."


def root(error: BaseException) -> BaseException:
    """Returns the first error of this package in the chain of an error, or else the error that began it."""
    found = error
    for found in _chain(error):
        if isinstance(found, LLMBeamError):
            break
    return found


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yields an error, then what it was raised from, down to the error that began it."""
    earlier: BaseException | None = error
    while earlier is not None:
        error = earlier
        yield error
        earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if isinstance(error, BaseExceptionGroup):
            earlier = error.exceptions[0]


@contextmanager
def preparation(spec: JobSpec) -> Iterator[None]:
    """Reports a fault of the body, which sends nothing, such as a missing bucket; only a 4xx is final."""
    from airflow_provider_llmbeam.pipeline.launch.writable import is_final, service_error

    try:
        yield
    except LLMBeamError:
        raise
    except Exception as raised:
        error = service_error(raised)
        message = f"{type(error).__name__}: {error}".rstrip(".")
        raise (JobSpecError if is_final(error) else JobFailedError)(
            f"Job {spec.name!r} could not be prepared: {message}."
        ) from raised
