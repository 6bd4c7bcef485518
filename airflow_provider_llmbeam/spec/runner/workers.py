"""Number of workers that a quota keeps busy."""

from __future__ import annotations

import math

from airflow_provider_llmbeam.spec.limits import Limits
from airflow_provider_llmbeam.spec.runner import DataflowRunner, LocalRunner, Runner
from airflow_provider_llmbeam.spec.runner.flink import FlinkRunner
from airflow_provider_llmbeam.spec.runner.portable import PortableRunner

#: Maximum number of workers if no quota of requests is known. The limit of Dataflow itself is in the thousands.
MAX_WORKERS_WITHOUT_QUOTA = 10


def max_workers(runner: DataflowRunner, limits: Limits) -> int:
    """Returns the maximum number of workers of a job: as many as its quota keeps busy.

    Little's law: a rate of r requests a second, each of which takes s seconds, keeps r × s requests in flight; a
    worker, which is one process, has `limits.max_in_flight` of them. Never fewer than the initial number.
    """
    if runner.max_workers is not None:
        return runner.max_workers
    initial = runner.num_workers or 1
    if limits.requests_per_minute is None:
        return max(initial, MAX_WORKERS_WITHOUT_QUOTA)
    per_second = limits.requests_per_minute * limits.share_ratio / 60
    return max(initial, math.ceil(per_second * runner.expected_latency_seconds / limits.max_in_flight))


def workers_of(runner: Runner, limits: Limits) -> int:
    """Returns the maximum number of processes that send requests: one per worker, or one on this machine."""
    match runner:
        case DataflowRunner():
            return max_workers(runner, limits)
        case PortableRunner():
            return runner.workers
        case FlinkRunner():
            return runner.task_managers
        case _:
            return 1


def first_workers(runner: DataflowRunner, limits: Limits) -> int | None:
    """Returns the initial number of workers; `None` leaves it to Dataflow.

    With a known quota it is the maximum number: Dataflow adds no workers while they use less than 5 % of their
    processors, and workers that wait for a model do.
    Source: cloud.google.com/dataflow/docs/horizontal-autoscaling
    """
    if runner.num_workers is not None or limits.requests_per_minute is None:
        return runner.num_workers
    return max_workers(runner, limits)


def limits_of_a_worker(runner: Runner, limits: Limits) -> Limits:
    """Returns the limits with `expected_workers` set."""
    if limits.expected_workers is not None or isinstance(runner, LocalRunner):
        return limits
    return limits.model_copy(update={"expected_workers": workers_of(runner, limits)})
