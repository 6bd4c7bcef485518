"""A job of a service, and its address, as the poller sees them: those of Dataflow and of Flink."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, Protocol


class Address(Protocol):
    """Address of a job."""

    @property
    def service(self) -> str:
        """Name of the service, for messages."""

    @property
    def job_id(self) -> str:
        """ID that the service gave the job."""

    @property
    def cancel_command(self) -> str:
        """Shell command that cancels the job."""


class Job(Protocol):
    """Snapshot of a job."""

    @property
    def job_id(self) -> str:
        """ID that the service gave the job."""

    @property
    def name(self) -> str:
        """Name that this package gave the job, see `spec.identity`."""

    @property
    def state(self) -> str:
        """State in the API of the service; may be unknown to this version."""

    @property
    def created_at(self) -> datetime | None:
        """Time of creation, in UTC; `None` if not known."""

    @property
    def run(self) -> str | None:
        """Task and run of this job, as the service keeps them; `None` if it keeps none."""

    @property
    def replaced_by(self) -> str | None:
        """ID of the job that continues the work of this one; `None` otherwise."""

    @property
    def phase(self) -> Literal["going", "done", "failed", "cancelled", "replaced"]:
        """Phase of the state."""

    @property
    def is_known(self) -> bool:
        """Whether this version knows the state."""

    @property
    def is_over(self) -> bool:
        """Whether this job has ended."""

    @property
    def is_cancelling(self) -> bool:
        """Whether this job is being cancelled."""

    @property
    def was_drained(self) -> bool:
        """Whether somebody has drained this job."""
