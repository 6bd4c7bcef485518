"""Dataflow jobs as plain values, without a client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import ClassVar, Literal

from airflow_provider_llmbeam.spec.deployment import DEPLOYMENT_LABEL
from airflow_provider_llmbeam.spec.endpoint.identity import RUN_LABEL

#: Phase of a job. `replaced`: another job continues its work.
Phase = Literal["going", "done", "failed", "cancelled", "replaced"]

#: All states of `JobState` in google-cloud-dataflow-client 0.13.
PHASES: Mapping[str, Phase] = MappingProxyType(
    {
        "JOB_STATE_UNKNOWN": "going",
        "JOB_STATE_STOPPED": "going",  # the service's name for a job that has not started
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
    """Returns the phase of a state; an unknown state counts as `going`."""
    return PHASES.get(state, "going")


@dataclass(frozen=True, slots=True)
class JobAddress:
    """Project, region and ID of a job.

    Attributes:
        project: Google Cloud project.
        location: Region.
        job_id: ID that Dataflow gave the job.
    """

    service: ClassVar[str] = "Dataflow"

    project: str
    location: str
    job_id: str

    @property
    def cancel_command(self) -> str:
        """Shell command that cancels the job."""
        return f"gcloud dataflow jobs cancel {self.job_id} --region={self.location} --project={self.project}"


@dataclass(frozen=True, slots=True)
class DataflowJob:
    """Snapshot of a job.

    Attributes:
        job_id: ID that Dataflow gave the job.
        name: Name that this package gave the job, see `spec.identity`.
        state: State in the API, e.g. `JOB_STATE_RUNNING`; may be unknown to this version.
        created_at: Time of creation, in UTC; `None` if not known.
        labels: Labels of the job; a list of jobs may omit them.
        replaced_by: ID of the job that continues the work of an updated job; `None` otherwise.
    """

    job_id: str
    name: str
    state: str
    created_at: datetime | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    replaced_by: str | None = None

    @property
    def phase(self) -> Phase:
        """Phase of the state."""
        return phase(self.state)

    @property
    def is_known(self) -> bool:
        """Whether this version knows the state."""
        return self.state in PHASES

    @property
    def is_cancelling(self) -> bool:
        """Whether this job is being cancelled."""
        return self.state == "JOB_STATE_CANCELLING"

    @property
    def was_drained(self) -> bool:
        """Whether somebody has drained this job."""
        return self.state == "JOB_STATE_DRAINED"

    @property
    def run(self) -> str | None:
        """Label of its task and run; `None` if it has none, or it was left out of a list."""
        return self.labels.get(RUN_LABEL)

    @property
    def deployment(self) -> str:
        """Airflow deployment that submitted the job; empty if it is not known."""
        return self.labels.get(DEPLOYMENT_LABEL, "")

    @property
    def is_over(self) -> bool:
        """Whether this job has ended."""
        return self.phase != "going"
