"""A job that runs elsewhere, as its service described it: on Dataflow or on Flink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from airflow_provider_llmbeam.spec.endpoint.identity import RUN_LABEL
from airflow_provider_llmbeam.spec.fields.names import DEPLOYMENT_LABEL

#: Phase of a job. `unknown`: a state that this version does not know; `replaced`: another job continues its work.
Phase = Literal["running", "cancelling", "unknown", "done", "failed", "cancelled", "drained", "replaced"]


@dataclass(frozen=True, slots=True)
class RemoteJob:
    """Snapshot of a job.

    Attributes:
        job_id: ID that the service gave the job.
        name: Name that this package gave the job, see `spec.identity`; without the digest of its run.
        state: State in the API of the service, e.g. `JOB_STATE_RUNNING`.
        phase: Phase of the state.
        created_at: Time of creation, in UTC; `None` if not known.
        labels: Labels of the job. A list of Dataflow omits them; on Flink, the digest of the run alone, which is
            part of the name there.
        replaced_by: ID of the job that continues the work of an updated job; `None` otherwise.
    """

    job_id: str
    name: str
    state: str
    phase: Phase
    created_at: datetime | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    replaced_by: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether this job has ended."""
        return self.phase not in ("running", "cancelling", "unknown")

    @property
    def run(self) -> str | None:
        """Task and run of this job: a label on Dataflow, its digest on Flink; `None` if the service keeps none."""
        return self.labels.get(RUN_LABEL)

    @property
    def deployment(self) -> str:
        """Airflow deployment that submitted the job; empty if it is not known."""
        return self.labels.get(DEPLOYMENT_LABEL, "")


def newest_first(jobs: list[RemoteJob]) -> list[RemoteJob]:
    """Returns jobs by their time of creation."""
    return sorted(jobs, key=lambda job: job.created_at.timestamp() if job.created_at else 0.0, reverse=True)


def flink_cancel_command(rest_url: str, job_id: str) -> str:
    """Returns the shell command that cancels a job on the Flink cluster of a REST API."""
    return f"curl -X PATCH '{rest_url}/jobs/{job_id}?mode=cancel'"
