"""The jobs of the emulated Dataflow and their states. No HTTP, no processes."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from llmbeam_sandbox.core.clock import Clock

QUEUED = "JOB_STATE_QUEUED"
PENDING = "JOB_STATE_PENDING"
RUNNING = "JOB_STATE_RUNNING"
DONE = "JOB_STATE_DONE"
FAILED = "JOB_STATE_FAILED"
CANCELLING = "JOB_STATE_CANCELLING"
CANCELLED = "JOB_STATE_CANCELLED"
ACTIVE = frozenset({QUEUED, PENDING, RUNNING, CANCELLING})
BATCH = "JOB_TYPE_BATCH"
STREAMING = "JOB_TYPE_STREAMING"
# Ascending; the numbers of the enum are in another order.
IMPORTANCES = tuple(f"JOB_MESSAGE_{name}" for name in ("DEBUG", "DETAILED", "BASIC", "WARNING", "ERROR"))
_SUMMARY_OMITS = frozenset({"environment", "steps", "stepsLocation", "pipelineDescription"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One line of a job's log.

    Attributes:
        at: Time, in seconds since the epoch.
        importance: Importance, one of `IMPORTANCES`.
        text: Text of the message.
    """

    at: float
    importance: str
    text: str


@dataclass(kw_only=True)
class Job:
    """One job.

    Attributes:
        id: Unique id.
        project: Project that owns the job.
        location: Region.
        name: Name, unique among the active jobs of project and region.
        fields: Fields as submitted, in the format of the API.
        created_at: Time of creation, in seconds since the epoch.
        state: Current state, e.g. "JOB_STATE_RUNNING".
        state_at: Time of the last change of state, in seconds since the epoch.
        states: All states so far, in order.
        messages: Log messages.
        metrics: Metrics as `MetricUpdate`s.
        metrics_at: Time of the last change of the metrics, in seconds since the epoch.
    """

    id: str
    project: str
    location: str
    name: str
    fields: dict[str, Any]
    created_at: float
    state: str
    state_at: float
    states: list[str] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    metrics_at: float = 0.0

    @property
    def is_active(self) -> bool:
        """Whether the job has not ended."""
        return self.state in ACTIVE

    def resource(self, view: str = "JOB_VIEW_ALL") -> dict[str, Any]:
        """Returns the job as the API returns it."""
        shown = {
            **self.fields,
            "id": self.id,
            "projectId": self.project,
            "location": self.location,
            "name": self.name,
            "currentState": self.state,
            "currentStateTime": timestamp(self.state_at),
            "createTime": timestamp(self.created_at),
            "startTime": timestamp(self.created_at),
        }
        omitted = frozenset() if view in ("JOB_VIEW_ALL", "JOB_VIEW_DESCRIPTION") else _SUMMARY_OMITS
        return {name: value for name, value in shown.items() if name not in omitted}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """The workers that a job requests.

    Attributes:
        machine_type: Machine type; "" leaves the choice to the service.
        max_workers: Maximum number; 0 leaves the choice to the service.
    """

    machine_type: str = ""
    max_workers: int = 0


class Jobs:
    """All jobs; safe to use from any thread.

    Args:
        clock: Returns seconds since the epoch.
    """

    def __init__(self, clock: Clock) -> None:
        self.lock = threading.RLock()
        self._clock = clock
        self._jobs: dict[str, Job] = {}
        self._random = random.Random()

    def all(self) -> list[Job]:
        """Returns the jobs, the newest first."""
        with self.lock:
            return list(reversed(self._jobs.values()))

    def find(self, project: str, location: str, job_id: str) -> Job | None:
        """Returns a job, if any; "" as location is any location."""
        with self.lock:
            found = self._jobs.get(job_id)
        if found is None or found.project != project or location not in ("", found.location):
            return None
        return found

    def active(self, project: str, location: str, name: str) -> Job | None:
        """Returns the active job with a name, if any."""
        for job in self.all():
            if (job.project, job.location, job.name) == (project, location, name) and job.is_active:
                return job
        return None

    def add(self, project: str, location: str, fields: Mapping[str, Any], state: str) -> Job:
        """Creates a job with an id like the service's: the time of creation and a number."""
        now = self._clock()
        with self.lock:
            moment = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d_%H_%M_%S")
            job = Job(
                id=f"{moment}-{self._random.randrange(10**18, 10**19)}",
                project=project,
                location=location,
                name=str(fields["name"]),
                fields=dict(fields),
                created_at=now,
                state=state,
                state_at=now,
                states=[state],
            )
            self._jobs[job.id] = job
        return job

    def move(self, job: Job, state: str) -> bool:
        """Changes the state of a job; returns False if it has ended, or is being cancelled."""
        with self.lock:
            if not job.is_active or (job.state == CANCELLING and state in (PENDING, RUNNING)):
                return False
            if state != job.state:
                job.state, job.state_at = state, self._clock()
                job.states.append(state)
        return True

    def log(self, job: Job, importance: str, text: str) -> None:
        """Appends to the log of a job; `importance` is one of `IMPORTANCES`."""
        with self.lock:
            job.messages.append(Message(at=self._clock(), importance=importance, text=text))

    def set_metrics(self, job: Job, metrics: list[dict[str, Any]]) -> None:
        """Replaces the metrics of a job."""
        with self.lock:
            job.metrics, job.metrics_at = metrics, self._clock()

    def clear(self) -> None:
        """Removes all jobs."""
        with self.lock:
            self._jobs.clear()

    def by_state(self) -> dict[str, int]:
        """Returns the number of jobs by state, without its prefix."""
        return dict(Counter(job.state.removeprefix("JOB_STATE_") for job in self.all()))


def timestamp(seconds: float) -> str:
    """Returns a time as the API writes it: in UTC, with microseconds."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def workers_of(fields: Mapping[str, Any]) -> Workers:
    """Returns the workers that the first worker pool of a job requests."""
    pools = (fields.get("environment") or {}).get("workerPools") or [{}]
    scaling = pools[0].get("autoscalingSettings") or {}
    return Workers(
        machine_type=str(pools[0].get("machineType") or ""), max_workers=int(scaling.get("maxNumWorkers") or 0)
    )
