"""Decides after each poll of the batch-inference jobs of a run. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from airflow_provider_llmbeam.providers.batch import BatchJob

#: Interval between polls, in seconds: a tenth of the age of the youngest job within these bounds, and less shortly
#: before a job has to be cancelled.
MIN_POLL_SECONDS, MAX_POLL_SECONDS = 10.0, 300.0
#: Time that a cancelled job may take to end, in seconds. It is part of the time that the rest needs online.
CANCEL_SECONDS = 300.0
#: Interval between two requests to cancel the same job, in seconds: the first may have been lost.
CANCEL_AGAIN_SECONDS = 60.0
#: Margin on the time that the rest needs online: the rate may be a learned one, and rows differ in length.
ONLINE_MARGIN = 1.2
#: Shortest wait for which `auto` submits batch inference, in seconds. The fastest ones seen took 3 to 4 minutes
#: (5 jobs of the Developer API in 2 min 36 s, 3 rows on Vertex AI in 4 min, litellm#37208).
MIN_BATCH_SECONDS = 600.0
#: Submissions of one file. The second is for a job that failed as a whole, e.g. on a 429 of the service
#: (python-aiplatform#4485); what fails twice is sent online. With one submission, runs whose jobs fail at first in
#: half of the cases cost 0.75 of what they cost online, with two 0.63 (`bench.batch_simulation`).
MAX_SUBMITS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """What is known before the first poll.

    Attributes:
        started_at: Unix time at which the files were prepared.
        deadline_at: Unix time by which the answers are needed; `None` for no deadline.
        max_wait_seconds: Longest wait for all jobs together, in seconds.
        online_seconds: Time that the rows of all files take online, in seconds; `None` if it is not known, and
            then half of the time until the deadline is kept for them.
        ends_because: Why batch inference ends now; `None` for the limits on its time alone.
    """

    started_at: float
    deadline_at: float | None
    max_wait_seconds: float
    online_seconds: float | None
    ends_because: str | None = None

    def switch_at(self, unanswered_ratio: float) -> float:
        """Returns the Unix time at which waiting has to end, if this share of the rows has no answer yet."""
        if self.ends_because is not None:
            return self.started_at
        latest = self.started_at + self.max_wait_seconds
        if self.deadline_at is None:
            return latest
        online = self.online_seconds
        if online is None:
            online = max(0.0, self.deadline_at - self.started_at) / 2 / ONLINE_MARGIN
        return min(latest, self.deadline_at - online * unanswered_ratio * ONLINE_MARGIN - CANCEL_SECONDS)

    def pays(self, now: float) -> bool:
        """Whether there is time enough for batch inference before the rest has to be sent online."""
        return self.switch_at(1.0) - now >= MIN_BATCH_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """One request file and its job.

    Attributes:
        display_name: Display name of its job.
        rows: Number of requests.
        job: The job as of the last poll; `None` before it is submitted.
        submits: Number of submissions so far.
        is_in_doubt: Whether nobody knows if its last submission has created a job, see `adopt`.
    """

    display_name: str
    rows: int
    job: BatchJob | None = None
    submits: int = 0
    is_in_doubt: bool = False

    @property
    def may_be_submitted(self) -> bool:
        """Whether the file has no job that runs or has results."""
        if self.is_in_doubt:
            return False
        if self.job is None:
            return self.submits < MAX_SUBMITS
        return self.job.phase == "failed" and not self.job.results and self.submits < MAX_SUBMITS

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be expected of the file."""
        if self.is_in_doubt:
            return False
        return not self.may_be_submitted and (self.job is None or self.job.has_ended)


@dataclass(frozen=True, slots=True)
class MonitorHistory:
    """State that one decision needs from those before it.

    Attributes:
        cancelled_at: Unix time of the last request to cancel, by display name.
        first_cancelled_at: Unix time of the first one; `None` before it.
    """

    cancelled_at: Mapping[str, float] = field(default_factory=dict)
    first_cancelled_at: float | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Poll again.

    Attributes:
        seconds: Time until then.
        message: Sentence for the log.
    """

    seconds: float
    message: str


@dataclass(frozen=True, slots=True)
class Submit:
    """Submit these files, then decide again."""

    display_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel the jobs of these files, then decide again."""

    display_names: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Take what the jobs have answered, and send the rest online.

    Attributes:
        reason: Why waiting is over.
        may_bill: Display names of jobs that have not ended, or are in doubt, and may still bill.
    """

    reason: str
    may_bill: tuple[str, ...] = ()


Decision = Wait | Submit | Cancel | Finish


def decide(
    files: Sequence[FileState], plan: BatchPlan, history: MonitorHistory, now: float, *, room: int | None = None
) -> tuple[Decision, MonitorHistory]:
    """Decides what follows from the state of the jobs.

    Args:
        files: All request files of the run.
        plan: What was known before.
        history: State after the decisions so far.
        now: Unix time.
        room: Number of jobs that the provider takes now; `None` for no limit.

    Returns:
        The decision, and the history for the next one.
    """
    running = [each for each in files if each.job is not None and not each.job.has_ended]
    switch_at = plan.switch_at(_unanswered_ratio(files))
    if now >= switch_at or history.first_cancelled_at is not None:
        return _end(running, [each.display_name for each in files if each.is_in_doubt], plan, history, now)
    if not running and all(each.is_over for each in files):
        return Finish("all jobs have ended"), history
    # The one that was submitted longest ago comes first: one that never fits does not keep the others back.
    files_due = sorted((each for each in files if each.may_be_submitted), key=_submitted_at)
    waiting = [each.display_name for each in files_due]
    if to_submit := waiting if room is None else waiting[:room]:
        return Submit(tuple(to_submit)), history
    youngest = max((each.job.created_at for each in running if each.job), default=plan.started_at)
    seconds = min(max((now - youngest) / 10, MIN_POLL_SECONDS), MAX_POLL_SECONDS, max(1.0, switch_at - now))
    return Wait(seconds, _progress(files, len(waiting))), history


def _submitted_at(file: FileState) -> float:
    return 0.0 if file.job is None else file.job.created_at


def _end(
    running: Sequence[FileState],
    doubts: Sequence[str],
    plan: BatchPlan,
    history: MonitorHistory,
    now: float,
) -> tuple[Decision, MonitorHistory]:
    """Cancels what runs, and waits for its end for a while: a cancelled job may return what it has answered."""
    is_late = plan.deadline_at is not None and now < plan.started_at + plan.max_wait_seconds
    reason = plan.ends_because or (
        "the rest has to be sent online to be answered by `inference.finish_by`"
        if is_late
        else f"`inference.max_batch_wait_seconds` ({plan.max_wait_seconds:,.0f} s) is over"
    )
    if not running:
        return Finish(reason, tuple(doubts)), history
    since = now if history.first_cancelled_at is None else history.first_cancelled_at
    if now - since >= CANCEL_SECONDS:
        return Finish(reason, (*(each.display_name for each in running), *doubts)), history
    due = tuple(
        each.display_name
        for each in running
        if now - history.cancelled_at.get(each.display_name, float("-inf")) >= CANCEL_AGAIN_SECONDS
        and (each.job is None or each.job.phase != "cancelling")
    )
    if not due:
        message = f"Batch inference: {len(running)} cancelled, but not ended yet."
        # Counted from now also if somebody else has cancelled them, or an earlier try that did not record it.
        waited = replace(history, first_cancelled_at=since)
        return Wait(min(MIN_POLL_SECONDS, since + CANCEL_SECONDS - now), message), waited
    cancelled = {**history.cancelled_at, **dict.fromkeys(due, now)}
    return Cancel(due, reason), replace(history, cancelled_at=cancelled, first_cancelled_at=since)


def _unanswered_ratio(files: Iterable[FileState]) -> float:
    """Returns the share of the rows that would be sent online now.

    Rows of a job count as answered once it has ended: before that, nothing can be read. A cancelled job may return
    its answers or not, so it is not counted on.
    """
    rows = unanswered = 0
    for each in files:
        rows += each.rows
        if each.job is None or each.job.phase not in ("succeeded", "partial"):
            unanswered += each.rows
        else:
            # A job may succeed although all its rows have failed (python-genai#2693).
            missing = 0 if each.job.answered is None else each.rows - each.job.answered
            unanswered += min(each.rows, max(missing, each.job.failed or 0))
    return unanswered / rows if rows else 0.0


def _progress(files: Sequence[FileState], waiting: int) -> str:
    jobs = [each.job for each in files if each.job is not None]
    answered = sum(job.answered or 0 for job in jobs)
    rows = sum(each.rows for each in files)
    states = {phase: sum(job.phase == phase for job in jobs) for phase in sorted({job.phase for job in jobs})}
    parts = [f"{number} {phase}" for phase, number in states.items()]
    if waiting:
        parts.append(f"{waiting} not submitted yet")
    if doubts := sum(each.is_in_doubt for each in files):
        parts.append(f"{doubts} whose creation got no reply")
    return f"Batch inference: {answered:,} of {rows:,} rows answered; jobs: {', '.join(parts)}."
