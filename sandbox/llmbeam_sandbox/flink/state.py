"""The jobs of the emulated Flink cluster and their states. No HTTP."""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from llmbeam_sandbox.core.clock import Clock

RUNNING = "RUNNING"
CANCELED = "CANCELED"
FAILED = "FAILED"
FINISHED = "FINISHED"
ENDED = frozenset({CANCELED, FAILED, FINISHED})
#: States of a job of Beam's job service, as Flink names them.
OF_BEAM: Mapping[str, str] = {
    "STOPPED": "CREATED",
    "STARTING": "INITIALIZING",
    "RUNNING": RUNNING,
    "DONE": FINISHED,
    "FAILED": FAILED,
    "CANCELLING": "CANCELLING",
    "CANCELLED": CANCELED,
}


@dataclass(kw_only=True)
class Job:
    """One job.

    Attributes:
        id: Id, 32 hexadecimal digits.
        name: Name; any number of jobs may have it.
        state: State, e.g. "RUNNING".
        started_at: Time of the start, in seconds since the epoch.
        ended_at: Time of the end, in seconds since the epoch; `None` for a job that runs.
        errors: Stack traces of what failed, oldest first.
        beam_id: Id at Beam's job service; "" for a job that has none.
    """

    id: str
    name: str
    state: str
    started_at: float
    ended_at: float | None = None
    errors: list[str] = field(default_factory=list)
    beam_id: str = ""


class Jobs:
    """All jobs of the cluster.

    Args:
        clock: Returns seconds since the epoch.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}

    def all(self) -> list[Job]:
        """Returns all jobs, the oldest first."""
        with self._lock:
            return list(self._jobs.values())

    def add(self, name: str, state: str = RUNNING) -> Job:
        """Adds a job."""
        job = Job(id=uuid.uuid4().hex, name=name, state=state, started_at=self._clock())
        with self._lock:
            self._jobs[job.id] = job
        return job

    def move(self, job: Job, state: str, error: str = "") -> None:
        """Changes the state of a job; a job that has ended keeps its own.

        Args:
            job: The job.
            state: New state.
            error: Stack trace of what failed; "" for none.
        """
        with self._lock:
            if job.state in ENDED:
                return
            job.state = state
            if error:
                job.errors.append(error)
            if state in ENDED:
                job.ended_at = self._clock()

    def show(self, beam_id: str, name: str, beam_state: str) -> None:
        """Adds or changes the job that shows one of Beam's job service."""
        job_id = hashlib.md5(beam_id.encode(), usedforsecurity=False).hexdigest()
        with self._lock:
            job = self._jobs.get(job_id)
            if job is None:
                job = Job(id=job_id, name=name, state="CREATED", started_at=self._clock(), beam_id=beam_id)
                self._jobs[job_id] = job
        self.move(job, OF_BEAM[beam_state])

    def clear(self) -> None:
        """Removes all jobs."""
        with self._lock:
            self._jobs.clear()
