"""Jobs of batch inference on the sandbox's clock, the same for all providers. No HTTP."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from llmbeam_sandbox.batch_inference.lines import Row, drawn
from llmbeam_sandbox.batch_inference.settings import BatchSettings
from llmbeam_sandbox.core.clock import Timeline
from llmbeam_sandbox.core.responses import Reply
from llmbeam_sandbox.core.rest import RestError

State = Literal[
    "queued", "running", "cancelling", "succeeded", "partially_succeeded", "failed", "cancelled", "expired"
]
ACTIVE: frozenset[State] = frozenset({"queued", "running", "cancelling"})
STUCK_SHARE = 0.99
"""Share of the rows that a job of the outcome `expired` or `stuck_at` finishes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one row.

    Attributes:
        row: The row.
        reply: Answer of the model, or the error.
    """

    row: Row
    reply: Reply

    @property
    def is_answered(self) -> bool:
        """Whether the model has answered."""
        return self.reply.http_status == 200


@dataclass(kw_only=True)
class Job:
    """One job.

    Attributes:
        name: Full name.
        model: Model name, without a publisher.
        fields: Fields as submitted, in the format of the API.
        settings: Settings of its creation.
        created_at: Time of creation, in seconds since the epoch.
        lifetime_seconds: Time from the creation after which it expires, in seconds.
        rows: Requests, in the order in which they are finished.
        input_fault: Why its input cannot be read; it then fails at its start. "" if it can.
        error_code: Code of `input_fault` in OpenAI's terms; "" for others.
        input_tokens: Input tokens of all rows; 0 where no limit needs them.
        answer: Answers a row.
        deliver: Writes the results to where the client looks for them; called at the end.
        state: Current state.
        started_at: Time of the start, in seconds since the epoch; None before.
        stopped_at: Time of the request to cancel, in seconds since the epoch; None without.
        ended_at: Time of the end, in seconds since the epoch; None before.
        error: Message of a failed job; "" for others, and for the usual one of the provider.
        results: Results of the finished rows, from the end on.
        output: What the API shows of the output.
    """

    name: str
    model: str
    fields: Mapping[str, Any]
    settings: BatchSettings
    created_at: float
    lifetime_seconds: float
    rows: Sequence[Row]
    input_fault: str = ""
    error_code: str = ""
    input_tokens: int = 0
    answer: Callable[[Row], Reply]
    deliver: Callable[[Job], None]
    state: State = "queued"
    started_at: float | None = None
    stopped_at: float | None = None
    ended_at: float | None = None
    error: str = ""
    results: list[Result] = field(default_factory=list)
    output: dict[str, Any] = field(default_factory=dict)

    @property
    def is_active(self) -> bool:
        """Whether the job has not ended."""
        return self.state in ACTIVE

    @property
    def expires_at(self) -> float:
        """Time at which it expires, in seconds since the epoch."""
        return self.created_at + (self.settings.expires_seconds or self.lifetime_seconds)

    @property
    def failed_rows(self) -> int:
        """Number of finished rows that have an error."""
        return sum(not result.is_answered for result in self.results)

    def finished_rows(self, now: float) -> int:
        """Returns the number of rows that are finished at `now`, in seconds since the epoch."""
        if not self.is_active:
            return len(self.results)
        if self.started_at is None:
            return 0
        return int(
            len(self.rows) * self._share(self.started_at, now if self.stopped_at is None else self.stopped_at)
        )

    def is_nearly_done(self, now: float) -> bool:
        """Returns whether a running job that will finish all rows has less than a hundredth left."""
        if self.started_at is None or self._most < 1:
            return False
        return self._share(self.started_at, now) >= STUCK_SHARE

    def _share(self, started_at: float, now: float) -> float:
        seconds = self.settings.run_seconds
        return min(self._most, (now - started_at) / seconds) if seconds else self._most

    @property
    def _most(self) -> float:
        return STUCK_SHARE if self.settings.outcome in ("expired", "stuck_at") else 1.0


class Jobs:
    """The jobs of one provider.

    Args:
        timeline: Scheduler of their states; actions answer rows, so that it is settled off the event loop.
        returns_expired: Whether an expired job returns the rows that were finished.
    """

    def __init__(self, timeline: Timeline, *, returns_expired: bool) -> None:
        self.timeline = timeline
        self.all: dict[str, Job] = {}
        self._returns_expired = returns_expired

    def clear(self) -> None:
        """Removes all jobs."""
        self.all.clear()

    @property
    def active(self) -> list[Job]:
        """Jobs that have not ended."""
        return [job for job in self.all.values() if job.is_active]

    def is_room_for(self, model: str, tokens: int, settings: BatchSettings) -> bool:
        """Returns whether the limit of enqueued tokens of a model admits another job of `tokens`."""
        most = settings.max_enqueued_tokens
        enqueued = sum(job.input_tokens for job in self.active if job.model == model)
        return most is None or enqueued + tokens <= most

    def submit(self, job: Job) -> None:
        """Adds a job to the queue; call it in `timeline.settled()`."""
        settings, at = job.settings, self.timeline.at
        self.all[job.name] = job
        at(job.expires_at, lambda now: self._expire(job, now))
        if settings.outcome != "stuck":
            at(job.created_at + settings.queue_seconds, lambda now: self._start(job, now))

    def cancel(self, job: Job) -> None:
        """Begins to cancel a job that has not ended; call it in `timeline.settled()`."""
        if job.state != "cancelling":
            job.state, job.stopped_at = "cancelling", self.timeline.now()
            end = job.stopped_at + job.settings.cancel_seconds
            self.timeline.at(
                end, lambda now: self._end(job, "cancelled", now, returns=job.settings.cancel_returns_rows)
            )

    def _start(self, job: Job, now: float) -> None:
        if job.state != "queued":
            return
        if job.input_fault:
            job.error = job.input_fault
            self._end(job, "failed", now, returns=False)
            return
        job.state, job.started_at = "running", now
        if job.settings.outcome != "stuck_at":
            self.timeline.at(now + job.settings.run_seconds, lambda end: self._finish(job, end))

    def _finish(self, job: Job, now: float) -> None:
        if job.state != "running":
            return
        match job.settings.outcome:
            case "failed":
                job.error = job.settings.failure
                self._end(job, "failed", now, returns=False)
            case "expired":
                self._expire(job, now)
            case "partially_succeeded":
                self._end(job, "partially_succeeded", now, returns=True)
            case _:
                self._end(job, "succeeded", now, returns=True)

    def _expire(self, job: Job, now: float) -> None:
        self._end(job, "expired", now, returns=self._returns_expired)

    def _end(self, job: Job, state: State, now: float, *, returns: bool) -> None:
        """Answers the rows that are finished by now, which are billed also if they are not returned."""
        if not job.is_active:
            return
        finished = () if state == "failed" else job.rows[: job.finished_rows(now)]
        job.results = [Result(row=row, reply=job.answer(row)) for row in finished]
        job.state, job.ended_at = state, now
        if returns:
            try:
                job.deliver(job)
            except RestError as error:
                job.state, job.error = "failed", error.message


class Batches:
    """What the batch inference of all providers shares: the timeline, the settings and the random source.

    Args:
        timeline: Scheduled actions of jobs.
        settings: Settings of jobs from the start, and after a reset.
        seed: Seed of orders and fates.

    Attributes:
        settings: Settings of the jobs that are created from now on.
    """

    def __init__(self, timeline: Timeline, settings: BatchSettings, seed: int) -> None:
        self.timeline = timeline
        self.settings = settings
        self._initial, self._seed = settings, seed
        self._serial = itertools.count(1)

    def change(self, **changes: Any) -> None:
        """Changes some settings for the jobs that are created from now on, until a reset.

        Raises:
            ValueError: A name is unknown, or a value is out of bounds.
        """
        try:
            self.settings = replace(self.settings, **changes)
        except TypeError as error:
            raise ValueError(
                f"The names must be those of `BatchSettings`; got {sorted(changes)}. {error}"
            ) from error

    def settle(self) -> None:
        """Runs all due actions."""
        with self.timeline.settled():
            pass

    def next_serial(self) -> int:
        """Returns the number of the next job, which makes its id and its random order unique."""
        return next(self._serial)

    def rows(self, lines: Sequence[Mapping[str, Any]], serial: int) -> tuple[Row, ...]:
        """Returns the rows of a job in a random order, each with its fate by the current settings."""
        return drawn(lines, self.settings, random.Random(f"{self._seed}/{serial}"))

    def clear(self) -> None:
        """Restores the initial settings, and forgets all scheduled actions."""
        with self.timeline.lock:
            self.timeline.clear()
            self.settings = self._initial
            self._serial = itertools.count(1)
