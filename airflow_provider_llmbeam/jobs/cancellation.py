"""Cancels a job, or leaves it running when its task has ended, as `runner.cancel_on_kill` says."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from airflow_provider_llmbeam.exceptions import LLMBeamError
from airflow_provider_llmbeam.jobs.job import Address, Job
from airflow_provider_llmbeam.polling.task_log import TaskLog

#: Timeout of each of the two requests before the wait, in seconds.
STOP_REQUEST_SECONDS = 3.0
#: Time from the stop file to the cancellation, in seconds: workers poll it every 2 s, and then record the answers
#: of requests in flight.
DRAIN_SECONDS = 5.0


class Cancellable(Protocol):
    """The methods of a client of Dataflow or Flink that a cancellation uses."""

    def get(self, job_id: str, within_seconds: float | None = None) -> Job:
        """Returns a job."""

    def cancel(self, job_id: str) -> None:
        """Requests its cancellation."""


class Storage(Protocol):
    """The method of `hooks.storage.StorageHook` that a cancellation uses."""

    def write(self, uri: str, text: str, within_seconds: float | None = None) -> None:
        """Writes an object."""


def stop_and_cancel(
    job_id: str,
    stop_uri: str,
    dataflow: Cancellable,
    connect_storage: Callable[[], Storage],
    log: TaskLog,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Has the workers record what is in flight, and then cancels the job.

    For callers with time. A task that is killed has 5 s until SIGKILL, and a trigger about 1 s until its `on_kill`
    is cancelled (Airflow 3.3.2, measured), so these cancel at once.

    The service ends the workers of a cancelled job at once: what they have answered since the last segment of the
    journal would be paid for again. No stop file is written for a job that has ended: it would end a later job of
    the task, which has the same name.

    Args:
        job_id: ID of the job.
        stop_uri: Stop file of the job, see `JobPaths`.
        dataflow: Client that reads and cancels the job.
        connect_storage: Makes the client that writes the stop file.
        log: Receives a failure to write it, after which the job is cancelled at once.
        sleep: Function that waits; its argument is in seconds.

    Raises:
        LLMBeamError: The job could not be cancelled.
    """
    try:
        if dataflow.get(job_id, STOP_REQUEST_SECONDS).is_over:
            return
        connect_storage().write(stop_uri, "", STOP_REQUEST_SECONDS)
    except LLMBeamError as error:
        log.log(logging.WARNING, "The workers could not be told to stop, so answers in flight are lost: %s", error)
    else:
        sleep(DRAIN_SECONDS)
    dataflow.cancel(job_id)


def cancel_or_leave(
    job: Address,
    cancel: Callable[[], None],
    *,
    cancel_on_kill: bool,
    reason: str,
    journal_uri: str,
    log: TaskLog,
) -> None:
    """Cancels the job or leaves it running, and logs what still bills.

    Args:
        job: Address of the job.
        cancel: Requests the cancellation.
        cancel_on_kill: Whether to cancel the job.
        reason: Sentence that says why the task no longer waits for the job.
        journal_uri: Directory of the answers so far.
        log: Receives one line.
    """
    kept = f"The answers so far are kept in {journal_uri!r}."
    to_cancel = f"To cancel it: {job.cancel_command}."
    if not cancel_on_kill:
        log.log(
            logging.WARNING,
            "%s %s job %r is left running and billing (`runner.cancel_on_kill` is off). %s %s",
            reason,
            job.service,
            job.job_id,
            to_cancel,
            kept,
        )
        return
    try:
        cancel()
    except LLMBeamError as error:
        log.log(
            logging.ERROR,
            "%s %s job %r may still be running and billing: %s %s %s",
            reason,
            job.service,
            job.job_id,
            error,
            to_cancel,
            kept,
        )
    else:
        log.log(logging.WARNING, "%s %s job %r was cancelled. %s", reason, job.service, job.job_id, kept)
