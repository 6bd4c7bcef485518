"""The turnaround of earlier batch-inference jobs, kept beside the journal for the decision of the next run."""

from __future__ import annotations

import logging
import time

from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.batch_inference.turnaround import (
    Turnaround,
    TurnaroundHistory,
    TurnaroundRecord,
)
from airflow_provider_llmbeam.providers.batch import BatchJob
from airflow_provider_llmbeam.spec.job import JobSpec

_log = logging.getLogger("llmbeam")


def expected_turnaround(spec: JobSpec, rows: int, now: float) -> Turnaround:
    """Returns the distribution of the turnaround of a job with this number of rows."""
    return _read(spec).turnaround(spec.model.name, _location(spec), rows, now)


def record_turnaround(spec: JobSpec, job: BatchJob, rows: int) -> None:
    """Adds a job that has ended; an error is not that of the run. Jobs that end at the same time are all added."""
    if job.ended_at is None:
        return

    def added(content: bytes | None) -> bytes:
        history = TurnaroundHistory() if content is None else TurnaroundHistory.decode(content)
        return history.add(record).encode()

    started_at = job.created_at if job.started_at is None else job.started_at
    try:
        record = TurnaroundRecord(
            model=spec.model.name,
            location=_location(spec),
            hour=time.gmtime(job.created_at).tm_hour,
            rows=rows,
            queue_seconds=max(0.0, started_at - job.created_at),
            run_seconds=max(0.0, job.ended_at - started_at),
            outcome="answered" if job.phase in ("succeeded", "partial") else "unfinished",
            ended_at=job.ended_at,
        )
        storage.change(spec.paths.turnaround_uri, added)
    except Exception as error:  # noqa: BLE001 - times of the provider may be anything, and the next job is recorded
        _log.debug("The turnaround of %s was not recorded: %s", job.name, error)


def _read(spec: JobSpec) -> TurnaroundHistory:
    try:
        if not storage.exists(spec.paths.turnaround_uri):
            return TurnaroundHistory()
        return TurnaroundHistory.decode(storage.read(spec.paths.turnaround_uri))
    except Exception as error:  # noqa: BLE001 - filesystems have errors of their own
        _log.warning("The turnaround of earlier jobs in %r is not used: %s", spec.paths.turnaround_uri, error)
        return TurnaroundHistory()


def _location(spec: JobSpec) -> str:
    return getattr(spec.model, "location", "") if getattr(spec.model, "project", None) else ""
