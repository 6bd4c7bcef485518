"""Flink jobs as plain values, without a client."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

Phase = Literal["going", "done", "failed", "cancelled", "replaced"]

#: All states of `JobStatus` in Flink 2.2.
PHASES: Mapping[str, Phase] = MappingProxyType(
    {
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
#: Name of a job of a run, see `spec.identity.flink_name`.
_OF_RUN = re.compile(r"(?P<name>.+-[0-9a-f]{12}-[0-9a-f]{8})-(?P<run>[0-9a-f]{8})")


@dataclass(frozen=True, slots=True)
class FlinkAddress:
    """Cluster and ID of a job.

    Attributes:
        rest_url: Address of the REST API of the cluster.
        job_id: ID that Flink gave the job.
    """

    service: ClassVar[str] = "Flink"

    rest_url: str
    job_id: str

    @property
    def cancel_command(self) -> str:
        """Shell command that cancels the job."""
        return f"curl -X PATCH '{self.rest_url}/jobs/{self.job_id}?mode=cancel'"


@dataclass(frozen=True, slots=True)
class FlinkJob:
    """Snapshot of a job.

    Attributes:
        job_id: ID that Flink gave the job.
        name: Name that this package gave the job, see `spec.identity`, without the digest of its run.
        state: State in the API, e.g. `RUNNING`; may be unknown to this version.
        created_at: Time of the start, in UTC; `None` if not known.
        run: Digest of its task and run, see `spec.identity.run_digest`; `None` if its name has none.
    """

    #: Flink replaces no job, and drains no batch job.
    replaced_by: ClassVar[None] = None
    was_drained: ClassVar[bool] = False

    job_id: str
    name: str
    state: str
    created_at: datetime | None = None
    run: str | None = None

    @classmethod
    def of(cls, reply: Mapping[str, Any]) -> Self:
        """Reads a job of `/jobs/overview`, or that of `/jobs/ID`."""
        started = reply.get("start-time", -1)  # in milliseconds
        created_at = datetime.fromtimestamp(started / 1000, UTC) if started > 0 else None
        name, run = str(reply["name"]), None
        if (named := _OF_RUN.fullmatch(name)) is not None:
            name, run = named["name"], named["run"]
        return cls(str(reply["jid"]), name, str(reply["state"]), created_at, run)

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
        return self.state == "CANCELLING"
