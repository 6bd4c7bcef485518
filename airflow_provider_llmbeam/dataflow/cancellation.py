"""Cancels a job whose task has ended, or leaves it running, as `runner.cancel_on_kill` says."""

from __future__ import annotations

import logging
from collections.abc import Callable

from airflow_provider_llmbeam.exceptions import LLMBeamError
from airflow_provider_llmbeam.google_cloud.dataflow_job import JobAddress
from airflow_provider_llmbeam.polling.task_log import TaskLog


def cancel_or_leave(
    job: JobAddress,
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
            "%s Dataflow job %r is left running and billing (`runner.cancel_on_kill` is off). %s %s",
            reason,
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
            "%s Dataflow job %r may still be running and billing: %s %s %s",
            reason,
            job.job_id,
            error,
            to_cancel,
            kept,
        )
    else:
        log.log(logging.WARNING, "%s Dataflow job %r was cancelled. %s", reason, job.job_id, kept)
