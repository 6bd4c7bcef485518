"""A job on a runner behind a job service: its options, and its cancellation with the process that waits for it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.spec.identity import dataflow_name
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.runner import PortableRunner

_log = logging.getLogger("llmbeam")

#: Timeout of the connection to a job service, in seconds.
CONNECT_SECONDS = 20.0


def portable_options(spec: JobSpec, runner: PortableRunner) -> dict[str, Any]:
    """Returns the runner of a spec as options of Beam.

    Raises:
        JobFailedError: The job service does not answer.
    """
    check_job_service(runner.job_endpoint)
    return {
        "runner": "PortableRunner",
        "job_endpoint": runner.job_endpoint,
        "artifact_endpoint": runner.artifact_endpoint,
        "job_name": dataflow_name(spec),
        **runner.environment.options,
        "experiments": ["disable_logging_submission_environment"],
        "no_save_main_session": True,
        **runner.options,
    }


def check_job_service(endpoint: str) -> None:
    """Connects to a job service, for which Beam would wait five minutes.

    Raises:
        JobFailedError: It does not answer.
    """
    with grpc.insecure_channel(endpoint) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=CONNECT_SECONDS)
        except grpc.FutureTimeoutError:
            raise JobFailedError(
                f"`runner.job_endpoint`: no job service answered at {endpoint!r} within {CONNECT_SECONDS:.0f} s. "
                "Nothing was sent or billed."
            ) from None


@contextmanager
def cancelled_at_interrupt(result: Any, runner: PortableRunner) -> Iterator[None]:
    """Asks the job service to cancel a job if the body is interrupted.

    Args:
        result: The job, as `Pipeline.run` returned it.
        runner: Its runner.
    """
    try:
        yield
    except KeyboardInterrupt:
        _cancel(result, runner)
        raise


def _cancel(result: Any, runner: PortableRunner) -> None:
    try:
        result.cancel()
    except grpc.RpcError as error:
        reason = error.details() if isinstance(error, grpc.Call) else str(error)
        _log.warning(
            "The job service at %s did not cancel the job: %s. The job may go on there, but its workers see that "
            "this process has ended: they record what is in flight, and send nothing more.",
            runner.job_endpoint,
            reason,
        )
    else:
        _log.warning("The job service at %s was asked to cancel the job.", runner.job_endpoint)
