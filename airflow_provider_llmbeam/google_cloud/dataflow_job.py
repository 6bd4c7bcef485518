"""A Dataflow job as Airflow sees it: plain values, no client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Literal

#: What a state means for somebody who waits. `replaced`: another job goes on with the work.
Phase = Literal["going", "done", "failed", "cancelled", "replaced"]

#: Every state that `JobState` of google-cloud-dataflow-client 0.13 knows.
PHASES: Mapping[str, Phase] = MappingProxyType(
    {
        "JOB_STATE_UNKNOWN": "going",
        "JOB_STATE_STOPPED": "going",  # the service's word for a job that has not begun
        "JOB_STATE_RUNNING": "going",
        "JOB_STATE_DONE": "done",
        "JOB_STATE_FAILED": "failed",
        "JOB_STATE_CANCELLED": "cancelled",
        "JOB_STATE_UPDATED": "replaced",
        "JOB_STATE_DRAINING": "going",
        "JOB_STATE_DRAINED": "cancelled",
        "JOB_STATE_PENDING": "going",
        "JOB_STATE_CANCELLING": "going",
        "JOB_STATE_QUEUED": "going",
        "JOB_STATE_RESOURCE_CLEANING_UP": "going",
        "JOB_STATE_PAUSING": "going",
        "JOB_STATE_PAUSED": "going",
    }
)


def phase(state: str) -> Phase:
    """What a state means; one that is not known yet is waited for."""
    return PHASES.get(state, "going")


@dataclass(frozen=True, slots=True)
class JobAddress:
    """Where a job is asked for.

    Attributes:
        project: Google Cloud project.
        location: Region.
        job_id: Given by Dataflow.
    """

    project: str
    location: str
    job_id: str

    @property
    def cancel_command(self) -> str:
        """What a person types to end the job."""
        return f"gcloud dataflow jobs cancel {self.job_id} --region={self.location} --project={self.project}"


@dataclass(frozen=True, slots=True)
class DataflowJob:
    """A job at one moment.

    Attributes:
        job_id: Given by Dataflow.
        name: Given by us, see `spec.identity`.
        state: On the wire, e.g. `JOB_STATE_RUNNING`; may be one that this version does not know.
        created_at: In UTC.
        labels: As far as Dataflow tells: a list of jobs may leave them out.
        replaced_by: Id of the job that goes on with the work of an updated one.
    """

    job_id: str
    name: str
    state: str
    created_at: datetime | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    replaced_by: str | None = None

    @property
    def phase(self) -> Phase:
        """What the state means."""
        return phase(self.state)

    @property
    def is_over(self) -> bool:
        """Whether this job itself does nothing any more."""
        return self.phase != "going"
