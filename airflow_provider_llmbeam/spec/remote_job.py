"""A job on Dataflow or Flink as plain values, without a client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Literal

from airflow_provider_llmbeam.spec.deployment import DEPLOYMENT_LABEL
from airflow_provider_llmbeam.spec.endpoint.identity import RUN_LABEL

#: Phase of a job. `replaced`: another job continues its work.
Phase = Literal["going", "done", "failed", "cancelled", "replaced"]

#: All states of `JobState` in google-cloud-dataflow-client 0.13, and of `JobStatus` in Flink 2.2.
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
        "INITIALIZING": "going",
        "CREATED": "going",
        "RUNNING": "going",
        "RESTARTING": "going",
        "RECONCILING": "going",
        "SUSPENDED": "going",  # another job manager takes it over
        "FAILING": "going",
        "FAILED": "failed",
        "CANCELLING": "going",
        "CANCELED": "cancelled",
        "FINISHED": "done",
    }
)


@dataclass(frozen=True, slots=True)
class JobAddress:
    """Address of a job: a region of a project on Dataflow, or a Flink cluster.

    Attributes:
        job_id: ID that the service gave the job.
        project: Google Cloud project; empty on Flink.
        location: Region; empty on Flink.
        rest_url: Address of the REST API of the Flink cluster; empty on Dataflow.
    """

    job_id: str
    project: str = ""
    location: str = ""
    rest_url: str = ""

    @property
    def service(self) -> Literal["Dataflow", "Flink"]:
        """Name of the service, for messages."""
        return "Flink" if self.rest_url else "Dataflow"

    @property
    def cancel_command(self) -> str:
        """Shell command that cancels the job."""
        if self.rest_url:
            return f"curl -X PATCH '{self.rest_url}/jobs/{self.job_id}?mode=cancel'"
        return f"gcloud dataflow jobs cancel {self.job_id} --region={self.location} --project={self.project}"


@dataclass(frozen=True, slots=True)
class RemoteJob:
    """Snapshot of a job.

    Attributes:
        job_id: ID that the service gave the job.
        name: Name that this package gave the job, see `spec.identity`; on Flink without the digest of its run.
        state: State in the API of the service; may be unknown to this version.
        created_at: Time of creation, in UTC; `None` if not known.
        labels: Labels of the job, which a list of jobs may omit; on Flink only `RUN_LABEL`, with a digest.
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
        """Phase of the state; an unknown state counts as `going`."""
        return PHASES.get(self.state, "going")

    @property
    def is_known(self) -> bool:
        """Whether this version knows the state."""
        return self.state in PHASES

    @property
    def is_over(self) -> bool:
        """Whether this job has ended."""
        return self.phase != "going"

    @property
    def is_cancelling(self) -> bool:
        """Whether this job is being cancelled."""
        return self.state in ("JOB_STATE_CANCELLING", "CANCELLING")

    @property
    def was_drained(self) -> bool:
        """Whether somebody has drained this job."""
        return self.state == "JOB_STATE_DRAINED"

    @property
    def run(self) -> str | None:
        """Label or digest of its task and run; `None` if it has none, or a list omitted it."""
        return self.labels.get(RUN_LABEL)

    @property
    def deployment(self) -> str:
        """Airflow deployment that submitted the job; empty if it is not known."""
        return self.labels.get(DEPLOYMENT_LABEL, "")

    @property
    def created_seconds(self) -> float:
        """Time of creation, in seconds of the Unix epoch; 0 if not known."""
        return self.created_at.timestamp() if self.created_at else 0.0
