"""Converts replies of Dataflow to values of this package."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_llmbeam.hooks.google.dataflow_job import DataflowJob
from airflow_provider_llmbeam.redaction import redact
from airflow_provider_llmbeam.spec.protocol.counts import NAMESPACE, Counts

if TYPE_CHECKING:
    from google.cloud.dataflow_v1beta3 import Job, JobMessage, MetricUpdate

_COUNTS = frozenset(field.name for field in fields(Counts))


def job_of(reply: Job) -> DataflowJob:
    """Returns a job; a state that is unknown to the client keeps its number."""
    from google.cloud import dataflow_v1beta3

    states: Any = dataflow_v1beta3.JobState  # an enum, although its annotations do not show it
    # Read from the underlying message, since proto-plus warns about unknown numbers.
    number = type(reply).pb(reply).current_state
    names = {member.value: member.name for member in states}
    created_at: Any = reply.create_time  # proto-plus converts it to a datetime
    return DataflowJob(
        job_id=reply.id,
        name=reply.name,
        state=names.get(number, f"JOB_STATE_{number}"),
        created_at=datetime.fromtimestamp(created_at.timestamp(), UTC) if created_at else None,
        labels=dict(reply.labels),
        replaced_by=reply.replaced_by_job_id or None,
    )


def counts_of(metrics: Iterable[MetricUpdate], *, running: bool) -> Counts:
    """Returns the sums of this package's counters over the steps of the pipeline.

    Dataflow reports a counter of a step twice: as committed, and with what bundles in progress have counted
    (`tentative`), which decreases when a bundle fails. One of the two counts is used, never both.

    Args:
        metrics: Metrics of the job.
        running: Whether to count bundles in progress.
    """
    tentative: dict[tuple[str, str], int] = {}
    committed: dict[tuple[str, str], int] = {}
    for metric in metrics:
        name, context = metric.name.name, metric.name.context
        if context.get("namespace") != NAMESPACE or name not in _COUNTS or not metric.scalar:
            continue
        values = tentative if context.get("tentative") == "true" else committed
        values[name, context.get("step", "")] = _whole(metric.scalar)
    preferred, other = (tentative, committed) if running else (committed, tentative)
    totals: Counter[str] = Counter()
    for (name, _), value in {**other, **preferred}.items():
        totals[name] += value
    return Counts(**totals)


def texts_of(messages: Iterable[JobMessage], limit: int) -> list[str]:
    """Returns the last `limit` distinct texts, in order, without secrets that have a known form or place."""
    return [redact(text) for text in [*dict.fromkeys(message.message_text for message in messages)][-limit:]]


def _whole(scalar: object) -> int:
    # A 64-bit integer is a string in JSON.
    return int(float(scalar)) if isinstance(scalar, str | int | float) else 0
