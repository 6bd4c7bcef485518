"""Decides which job is that of a submission without a reply, at an API whose jobs have no name. Pure.

A job is ours if its results have our keys, which nobody can read before its end. Until then nothing is submitted
again and nothing is cancelled.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_llmbeam.providers.batch import BatchJob

#: Time after which a job that no list has shown was not created, in seconds.
LISTED_SECONDS = 600.0
#: How far the clock of a worker may be ahead of that of the provider, in seconds.
CLOCK_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """A submission whose reply is not known.

    Attributes:
        sent_at: Unix time before it was sent.
        rows: Number of its requests.
    """

    sent_at: float
    rows: int

    @property
    def since(self) -> float:
        """Unix time from which its job may have been created."""
        return self.sent_at - CLOCK_SECONDS


@dataclass(frozen=True, slots=True)
class Adopt:
    """The submission has created this job."""

    job: BatchJob


@dataclass(frozen=True, slots=True)
class Prove:
    """Read whether the results of these jobs have our keys, then decide again."""

    jobs: tuple[BatchJob, ...]


@dataclass(frozen=True, slots=True)
class NotCreated:
    """The submission has created no job."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """Nothing is known yet: list again later.

    Attributes:
        names: Names of the jobs that may be the one.
    """

    names: tuple[str, ...]


def adopt(
    intent: Intent, listed: Sequence[BatchJob], known: Collection[str], proofs: Mapping[str, bool], now: float
) -> Adopt | Prove | NotCreated | Doubt:
    """Decides what has become of a submission.

    Args:
        intent: The submission.
        listed: Jobs of the account as of now, those from `intent.since` on.
        known: Names of jobs that are of another submission.
        proofs: Whether the results of a job have the keys of this submission, by its name.
        now: Unix time of the list.
    """
    candidates = [
        job
        for job in listed
        if job.created_at >= intent.since
        and job.rows == intent.rows
        and job.name not in known
        and proofs.get(job.name, True)
    ]
    if ours := next((job for job in candidates if proofs.get(job.name)), None):
        return Adopt(ours)
    if ended := tuple(job for job in candidates if job.has_ended and job.results):
        return Prove(ended)
    if not candidates and now - intent.sent_at >= LISTED_SECONDS:
        return NotCreated()
    return Doubt(tuple(job.name for job in candidates))
