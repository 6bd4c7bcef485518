"""Lives of the batch-inference jobs of a run, as data: what is decided at each poll, until the end.

`python -m tests.unit.pipeline.batch_inference.moments` writes the table of docs/reference/batch-cases.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from airflow_provider_llmbeam.pipeline.batch_inference.decide import (
    BatchPlan,
    Cancel,
    Decision,
    FileState,
    Finish,
    MonitorHistory,
    Submit,
    Wait,
    decide,
)
from airflow_provider_llmbeam.providers.batch import BatchJob, BatchPhase

_HISTORY = TypeAdapter(MonitorHistory)
PAGE = Path(__file__).parents[4] / "docs" / "reference" / "batch-cases.md"
HEAD = "| what becomes of the jobs | moments: state of each file, and what is decided |"

NOW = 1_800_000_000.0
MINUTE, HOUR = 60.0, 3600.0
#: Rows of a file, all of which a job answers that succeeds.
ROWS = 100
#: More polls than any life has: a day in intervals of five minutes, and the first hour.
MAX_POLLS = 1_000

#: Where a try is killed with `kill -9`: before what it has decided is done, or when it is done and not recorded.
KilledWhen = Literal["decided", "done"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """What becomes of a job at its provider.

    Attributes:
        phases: Its phase from an age on, in minutes.
        has_results: Whether it leaves results, in whatever phase it ends.
        cancelled_after: Minutes from the request to cancel it to its end; `None` if it goes on.
    """

    phases: Mapping[float, BatchPhase]
    has_results: bool = False
    cancelled_after: float | None = 0.0


@dataclass(frozen=True, kw_only=True)
class Life:
    """What becomes of the jobs of a run.

    Attributes:
        what: What becomes of them, for the table.
        files: The jobs of each file, by its name: of its first submission, and of those that follow.
        moments: States of the files and the decision that follows, for each change of them.
        plan: Changes of the plan: no deadline, a day, an hour online.
        takes: Number of jobs that the provider runs at once; `None` for no limit.
        deleted_at: Time at which somebody deletes all jobs, in minutes; `None` for never.
        is_online_after: Time from which the job is online, in minutes; `None` for never.
    """

    what: str
    files: Mapping[str, Sequence[Job]]
    moments: tuple[tuple[str, str], ...]
    plan: Mapping[str, Any] = field(default_factory=dict)
    takes: int | None = None
    deleted_at: float | None = None
    is_online_after: float | None = None


SUCCEEDS = Job(phases={0: "queued", 1: "running", 40: "succeeded"})
SUCCEEDS_LATE = Job(phases={0: "queued", 1: "running", 400: "succeeded"})
FAILS = Job(phases={0: "queued", 1: "failed"})
STUCK = Job(phases={0: "queued", 1: "running"}, cancelled_after=2)
HANGS = replace(STUCK, cancelled_after=math.inf)
NEVER_ENDS = Job(phases={0: "queued"}, cancelled_after=None)

LIVES = (
    Life(
        what="one job answers every row",
        files={"a": [SUCCEEDS]},
        moments=(("new", "submit a"), ("queued", "wait"), ("running", "wait"), ("succeeded", "finish")),
    ),
    Life(
        what="some rows fail in the job",
        files={"a": [Job(phases={0: "running", 40: "partial"})]},
        moments=(("new", "submit a"), ("running", "wait"), ("partial", "finish")),
    ),
    Life(
        what="the provider ends the job after a day of its own",
        files={"a": [Job(phases={0: "queued", 600: "expired"})]},
        moments=(("new", "submit a"), ("queued", "wait"), ("expired", "finish")),
    ),
    Life(
        what="the job fails as a whole, its second submission succeeds",
        files={"a": [FAILS, SUCCEEDS]},
        moments=(
            ("new", "submit a"),
            ("queued", "wait"),
            ("failed", "submit a"),
            ("queued", "wait"),
            ("running", "wait"),
            ("succeeded", "finish"),
        ),
    ),
    Life(
        what="both submissions fail as a whole: its rows are sent online",
        files={"a": [FAILS, FAILS]},
        moments=(
            ("new", "submit a"),
            ("queued", "wait"),
            ("failed", "submit a"),
            ("queued", "wait"),
            ("failed", "finish"),
        ),
    ),
    Life(
        what="the job fails and leaves results: they are paid for, and it is not submitted again",
        files={"a": [replace(FAILS, has_results=True)]},
        moments=(("new", "submit a"), ("queued", "wait"), ("failed with results", "finish")),
    ),
    Life(
        what="somebody cancels the job",
        files={"a": [Job(phases={0: "running", 5: "cancelling", 15: "cancelled"})]},
        moments=(("new", "submit a"), ("running", "wait"), ("cancelling", "wait"), ("cancelled", "finish")),
    ),
    Life(
        what="somebody deletes the job, which counts as cancelled",
        files={"a": [SUCCEEDS]},
        deleted_at=20,
        moments=(("new", "submit a"), ("queued", "wait"), ("running", "wait"), ("gone", "finish")),
    ),
    Life(
        what="the provider runs one job at once",
        files={"a": [SUCCEEDS], "b": [SUCCEEDS]},
        takes=1,
        moments=(
            ("new, new", "submit a"),
            ("queued, new", "wait"),
            ("running, new", "wait"),
            ("succeeded, new", "submit b"),
            ("succeeded, queued", "wait"),
            ("succeeded, running", "wait"),
            ("succeeded, succeeded", "finish"),
        ),
    ),
    Life(
        what="a file that failed waits behind one that was never submitted",
        files={"a": [FAILS, SUCCEEDS], "b": [SUCCEEDS]},
        takes=1,
        moments=(
            ("new, new", "submit a"),
            ("queued, new", "wait"),
            ("failed, new", "submit b"),
            ("failed, queued", "wait"),
            ("failed, running", "wait"),
            ("failed, succeeded", "submit a"),
            ("queued, succeeded", "wait"),
            ("running, succeeded", "wait"),
            ("succeeded, succeeded", "finish"),
        ),
    ),
    Life(
        what="the provider takes no job in a day",
        files={"a": [SUCCEEDS]},
        takes=0,
        moments=(("new", "wait"), ("new", "finish")),
    ),
    Life(
        what="the job is stuck for a day, and is cancelled",
        files={"a": [STUCK]},
        moments=(
            ("new", "submit a"),
            ("queued", "wait"),
            ("running", "wait"),
            ("running", "cancel a"),
            ("cancelling", "wait"),
            ("cancelled", "finish"),
        ),
    ),
    Life(
        what="the cancelled job has results of what it has answered",
        files={"a": [replace(STUCK, has_results=True)]},
        moments=(
            ("new", "submit a"),
            ("queued", "wait"),
            ("running", "wait"),
            ("running", "cancel a"),
            ("cancelling", "wait"),
            ("cancelled with results", "finish"),
        ),
    ),
    Life(
        what="the deadline comes near: the rest needs an hour online, and the cancellation five minutes",
        files={"a": [STUCK]},
        plan={"deadline_at": NOW + 3 * HOUR},
        moments=(
            ("new", "submit a"),
            ("queued", "wait"),
            ("running", "wait"),
            ("running", "cancel a"),
            ("cancelling", "wait"),
            ("cancelled", "finish"),
        ),
    ),
    Life(
        what="three of four files are answered, so the fourth has more time until the deadline",
        files={"a": [SUCCEEDS], "b": [SUCCEEDS], "c": [SUCCEEDS], "d": [STUCK]},
        plan={"deadline_at": NOW + 2 * HOUR},
        moments=(
            ("new, new, new, new", "submit a b c d"),
            ("queued, queued, queued, queued", "wait"),
            ("running, running, running, running", "wait"),
            ("succeeded, succeeded, succeeded, running", "wait"),
            ("succeeded, succeeded, succeeded, running", "cancel d"),
            ("succeeded, succeeded, succeeded, cancelling", "wait"),
            ("succeeded, succeeded, succeeded, cancelled", "finish"),
        ),
    ),
    Life(
        what="a job succeeds although it is cancelled: the other one is not waited for again",
        files={"a": [Job(phases={0: "running", 105: "succeeded"}, cancelled_after=None)], "b": [NEVER_ENDS]},
        plan={"deadline_at": NOW + 3 * HOUR},
        moments=(
            ("new, new", "submit a b"),
            ("running, queued", "wait"),
            *[("running, queued", "cancel a b"), ("running, queued", "wait")] * 2,
            *[("succeeded, queued", "cancel b"), ("succeeded, queued", "wait")] * 3,
            ("succeeded, queued", "finish; b may bill"),
        ),
    ),
    Life(
        what="the job obeys no cancellation: it is cancelled again each minute, and may bill after five",
        files={"a": [NEVER_ENDS]},
        moments=(
            ("new", "submit a"),
            ("queued", "wait"),
            *[("queued", "cancel a"), ("queued", "wait")] * 5,
            ("queued", "finish; a may bill"),
        ),
    ),
    Life(
        what="the deadline has passed before anything is submitted",
        files={"a": [SUCCEEDS]},
        plan={"deadline_at": NOW + HOUR},
        moments=(("new", "finish"),),
    ),
    Life(
        what="the job hangs while it is cancelled, and may bill after five minutes",
        files={"a": [HANGS]},
        moments=(
            ("new", "submit a"),
            ("queued", "wait"),
            ("running", "wait"),
            ("running", "cancel a"),
            ("cancelling", "wait"),
            ("cancelling", "finish; a may bill"),
        ),
    ),
    Life(
        what="`inference.mode` is 'online' from the next try on",
        files={"a": [SUCCEEDS], "b": [STUCK]},
        is_online_after=60,
        moments=(
            ("new, new", "submit a b"),
            ("queued, queued", "wait"),
            ("running, running", "wait"),
            ("succeeded, running", "wait"),
            ("succeeded, running", "cancel b"),
            ("succeeded, cancelling", "wait"),
            ("succeeded, cancelled", "finish"),
        ),
    ),
    Life(
        what="the longest wait of one job is over, another one has just failed",
        files={"a": [SUCCEEDS_LATE], "b": [Job(phases={0: "running", 60: "failed"})]},
        plan={"max_wait_seconds": HOUR},
        moments=(
            ("new, new", "submit a b"),
            ("queued, running", "wait"),
            ("running, running", "wait"),
            ("running, failed", "cancel a"),
            ("cancelled, failed", "finish"),
        ),
    ),
)


#: Moments at which a run of batch inference may be killed, and what the next try does.
KILLS = {
    "request files are written": "writes them again",
    "the intent is written": "writes the files again",
    "the job is submitted": "submits it",
    "the job exists, and is not recorded": "finds it by its name",
    "the task is deferred": "polls it",
    "the job is polled": "polls it",
    "the job is cancelled": "cancels it again, and waits for its end",
    "results are read": "reads them",
    "answers are in the journal, and not counted": "reads them again; each is one entry, however often it is read",
    "the harvest is recorded": "reads them again",
    "the rest is sent online": "sends what has no answer yet",
    "the job is deleted": "deletes it, and sends nothing",
}


def plan_of(life: Life, now: float) -> BatchPlan:
    is_online = life.is_online_after is not None and now >= NOW + life.is_online_after * MINUTE
    reason = "`inference.mode` is 'online' now" if is_online else None
    usual = {"started_at": NOW, "deadline_at": None, "max_wait_seconds": 24 * HOUR, "online_seconds": HOUR}
    return BatchPlan(**usual | dict(life.plan), ends_because=reason)


class Provider:
    """A provider whose jobs live as it is written.

    Args:
        life: What becomes of them.

    Attributes:
        replaced: Jobs whose file was submitted again, as they were then.
    """

    def __init__(self, life: Life) -> None:
        self._life = life
        self._created: dict[str, list[float]] = {name: [] for name in life.files}
        self._cancelled: dict[str, float] = {}
        self.replaced: list[BatchJob] = []

    def room(self, now: float) -> int | None:
        """Returns the number of jobs that it takes."""
        if self._life.takes is None:
            return None
        return self._life.takes - sum(not job.has_ended for job in self.jobs(now).values())

    def jobs(self, now: float) -> dict[str, BatchJob]:
        """Returns the newest job of each file, as a poll or a list shows it."""
        return {name: self._job(name, now) for name, created in self._created.items() if created}

    def submit(self, name: str, now: float) -> None:
        if name in (jobs := self.jobs(now)):
            self.replaced.append(jobs[name])
        self._created[name].append(now)
        self._cancelled.pop(name, None)

    def cancel(self, name: str, now: float) -> None:
        self._cancelled.setdefault(name, now)

    def _job(self, name: str, now: float) -> BatchJob:
        created, fate = self._created[name], self._life.files[name]
        lives = fate[min(len(created), len(fate)) - 1]
        phase: BatchPhase = [each for at, each in lives.phases.items() if now >= created[-1] + at * MINUTE][-1]
        state = str(phase)
        has_ended = BatchJob(name="", display_name="", state="", phase=phase, created_at=0.0).has_ended
        if self._life.deleted_at is not None and now >= NOW + self._life.deleted_at * MINUTE:
            phase, state = "cancelled", "gone"
        elif name in self._cancelled and not has_ended and lives.cancelled_after is not None:
            is_over = now >= self._cancelled[name] + lives.cancelled_after * MINUTE
            phase = "cancelled" if is_over else "cancelling"
            state = phase
        job = BatchJob(
            name=f"{name}{len(created)}", display_name=name, state=state, phase=phase, created_at=created[-1]
        )
        if not job.has_ended:
            return job
        return replace(
            job, results=("gs://b/r",) if lives.has_results or phase in ("succeeded", "partial") else ()
        )


@dataclass(frozen=True)
class Played:
    """What became of a run.

    Attributes:
        moments: As those of `Life`.
        begins: Number of the decision at which each moment begins.
        replaced: Jobs whose file was submitted again, as they were then.
        jobs: The newest job of each file at the end.
        seconds: Time until then.
    """

    moments: tuple[tuple[str, str], ...]
    begins: tuple[int, ...]
    replaced: tuple[BatchJob, ...]
    jobs: Mapping[str, BatchJob]
    seconds: float


def play(
    life: Life,
    *,
    killed_at: int | None = None,
    killed_when: KilledWhen = "decided",
    keeps_history: bool = True,
    away_seconds: float = 0.0,
    restored_at: int | None = None,
) -> Played:
    """Plays a life as `Monitor` does.

    Args:
        life: What becomes of the jobs.
        killed_at: Number of the decision at which the try is killed; the next one finds the jobs by name.
        killed_when: See `KilledWhen`.
        keeps_history: Whether the next try reads what was recorded.
        away_seconds: Time until the next try, in seconds.
        restored_at: Number of the decision before which the history goes through JSON.
    """
    provider, now = Provider(life), NOW
    history = recorded = MonitorHistory()
    submits: dict[str, int] = {}
    moments: list[tuple[str, str]] = []
    begins: list[int] = []
    for poll in range(MAX_POLLS):
        jobs = provider.jobs(now)
        # A submission that is not recorded is known by its job.
        submits = dict.fromkeys(jobs, 1) | submits
        files = [
            FileState(display_name=name, rows=ROWS, job=jobs.get(name), submits=submits.get(name, 0))
            for name in life.files
        ]
        if poll == restored_at:
            history = _HISTORY.validate_json(_HISTORY.dump_json(history))
        decision, history = decide(files, plan_of(life, now), history, now, room=provider.room(now))
        moment = (", ".join(map(_state, files)), _shown(decision))
        if not moments or moments[-1] != moment:
            moments.append(moment)
            begins.append(poll)
        if isinstance(decision, Finish) and poll != killed_at:
            return Played(tuple(moments), tuple(begins), tuple(provider.replaced), jobs, now - NOW)
        is_killed = poll == killed_at
        if not is_killed or killed_when == "done":
            match decision:
                case Submit(names):
                    for name in names:
                        provider.submit(name, now)
                        submits |= {} if is_killed else {name: submits.get(name, 0) + 1}
                case Cancel(names):
                    for name in names:
                        provider.cancel(name, now)
                    recorded = recorded if is_killed else history
                case Wait(seconds):
                    now += seconds
        if is_killed:
            history = recorded if keeps_history else MonitorHistory()
            submits = submits if keeps_history else {}
            now += away_seconds
    raise AssertionError(f"{life.what}: no end after {MAX_POLLS} polls; the last ones: {moments[-4:]}")


def _state(file: FileState) -> str:
    if file.job is None:
        return "new"
    is_told = file.job.phase not in ("succeeded", "partial") and file.job.results
    return f"{file.job.state} with results" if is_told else file.job.state


def _shown(decision: Decision) -> str:
    match decision:
        case Submit(names):
            return f"submit {' '.join(names)}"
        case Cancel(names):
            return f"cancel {' '.join(names)}"
        case Finish(_, may_bill):
            return "finish" + (f"; {' '.join(may_bill)} may bill" if may_bill else "")
    return "wait"


def table() -> Iterator[str]:
    """Yields the lines of the table of the page."""
    yield HEAD
    yield "| --- | --- |"
    for life in LIVES:
        yield f"| {life.what} | {' → '.join(f'{states}: **{decision}**' for states, decision in life.moments)} |"


def page_with_table(page: str) -> str:
    """Returns the page with the table as it is now."""
    before, _, rest = page.partition(HEAD)
    after = rest.partition("\n\n")[2]
    return before + "\n".join(table()) + "\n\n" + after


if __name__ == "__main__":
    PAGE.write_text(page_with_table(PAGE.read_text()))
