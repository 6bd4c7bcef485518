"""Cancels a job, or leaves it running when its task has ended, as `runner.cancel_on_kill` says."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from airflow_provider_llmbeam.exceptions import LLMBeamError
from airflow_provider_llmbeam.jobs.client import JobClient, SubmittedJob
from airflow_provider_llmbeam.polling.poller import TaskLog

#: Timeout of each of the two requests before the wait, in seconds.
STOP_REQUEST_SECONDS = 3.0
#: Time from the stop file to the cancellation, in seconds: workers poll it every 2 s, and then record the answers
#: of requests in flight.
DRAIN_SECONDS = 5.0


def stop_and_cancel(
    job_id: str, stop_uri: str, client: JobClient, log: TaskLog, sleep: Callable[[float], None] = time.sleep
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
        client: Client that reads and cancels the job, and writes the file.
        log: Receives a failure to write it, after which the job is cancelled at once.
        sleep: Function that waits; its argument is in seconds.

    Raises:
        LLMBeamError: The job could not be cancelled.
    """
    try:
        if client.get(job_id, STOP_REQUEST_SECONDS).is_over:
            return
        client.files(stop_uri).write(stop_uri, "", STOP_REQUEST_SECONDS)
    except LLMBeamError as error:
        log.log(logging.WARNING, "The workers could not be told to stop, so answers in flight are lost: %s", error)
    else:
        sleep(DRAIN_SECONDS)
    client.cancel(job_id)


def cancel_or_leave(job: SubmittedJob, connect: Callable[[], JobClient], *, reason: str, log: TaskLog) -> None:
    """Cancels the job or leaves it running, and logs what still bills.

    Args:
        job: The job.
        connect: Returns the client that cancels it.
        reason: Sentence that says why the task no longer waits for the job.
        log: Receives one line.
    """
    subject = f"{reason} {job.service} job {job.id!r}"
    kept = f"The answers so far are kept in {job.journal_uri!r}."
    to_cancel = f"To cancel it: {job.cancel_command}."
    if not job.cancel_on_kill:
        log.log(
            logging.WARNING,
            "%s is left running and billing (`runner.cancel_on_kill` is off). %s %s",
            subject,
            to_cancel,
            kept,
        )
        return
    try:
        connect().cancel(job.id)
    except LLMBeamError as error:
        log.log(logging.ERROR, "%s may still be running and billing: %s %s %s", subject, error, to_cancel, kept)
    else:
        log.log(logging.WARNING, "%s was cancelled. %s", subject, kept)
