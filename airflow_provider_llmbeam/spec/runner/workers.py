"""How many workers a quota keeps busy."""

from __future__ import annotations

import math

from airflow_provider_llmbeam.spec.limits import Limits
from airflow_provider_llmbeam.spec.runner import DataflowRunner, Runner

#: Where no quota of requests is known. Dataflow's own limit is in the thousands, and each worker would ask.
WITHOUT_A_QUOTA = 10


def max_workers(runner: DataflowRunner, limits: Limits) -> int:
    """The most workers that a job may have: as many as its quota keeps busy.

    Little's law: a rate of r requests a second, each of which takes s seconds, keeps r × s requests in flight; a
    worker, which is one process, has `limits.max_in_flight` of them. Never fewer than the job begins with.
    """
    if runner.max_workers is not None:
        return runner.max_workers
    begins_with = runner.num_workers or 1
    if limits.requests_per_minute is None:
        return max(begins_with, WITHOUT_A_QUOTA)
    per_second = limits.requests_per_minute * limits.share_ratio / 60
    return max(begins_with, math.ceil(per_second * runner.expected_latency_seconds / limits.max_in_flight))


def workers_of(runner: Runner, limits: Limits) -> int:
    """The most processes that send a job's requests: one on this machine, on Dataflow one per worker."""
    return max_workers(runner, limits) if isinstance(runner, DataflowRunner) else 1


def first_workers(runner: DataflowRunner, limits: Limits) -> int | None:
    """How many workers the job begins with; `None` leaves it to Dataflow.

    With a known quota all that it keeps busy: Dataflow adds none to workers that use less than 5 % of their
    processors, and ours wait for a model.
    Source: cloud.google.com/dataflow/docs/horizontal-autoscaling
    """
    if runner.num_workers is not None or limits.requests_per_minute is None:
        return runner.num_workers
    return max_workers(runner, limits)


def limits_of_a_worker(runner: Runner, limits: Limits) -> Limits:
    """The limits, with `expected_workers` decided."""
    if limits.expected_workers is not None or not isinstance(runner, DataflowRunner):
        return limits
    return limits.model_copy(update={"expected_workers": max_workers(runner, limits)})
