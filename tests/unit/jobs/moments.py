"""Moments of a task's job on Dataflow, and what follows: the tables of `docs/reference/dataflow-cases.md`.

`python -m tests.unit.jobs.moments` writes them to the page. `test_moments.py` and, for what Airflow does,
`tests/integration/test_dataflow_cases.py` play each row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from itertools import groupby
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "dataflow-cases.md"
#: Budget of the jobs whose polls are below, in US dollars.
BUDGET_USD = 5.0


@dataclass(frozen=True)
class Poll:
    """A poll of a job.

    Attributes:
        report: State of the job and the cost so far, or the HTTP status of a request that failed.
        decision: What follows. `warn` is a wait with a line in the log; the number is its seconds.
        anew: What follows if all polls before are forgotten, since another triggerer has started the trigger or
            another try waits for the job; empty if it is the same.
    """

    report: str
    decision: str
    anew: str = ""


def _failing(status: str, seconds: Iterable[int], end: str) -> tuple[Poll, ...]:
    return (
        *(Poll(status, f"warn {wait}", "warn 30") for wait in seconds),
        Poll(status, end, "warn 30"),
    )


RUNNING, DONE = Poll("RUNNING $1", "wait 30"), Poll("DONE $1", "succeeded")
#: What polls of a job report, until its task has the result.
LIVES = {
    "is done": (Poll("QUEUED", "wait 30"), RUNNING, DONE),
    "fails": (RUNNING, Poll("FAILED", "failed")),
    "is cancelled by somebody": (RUNNING, Poll("CANCELLING", "wait 30"), Poll("CANCELLED", "cancelled")),
    "is drained by somebody": (RUNNING, Poll("DRAINING", "wait 30"), Poll("DRAINED", "cancelled")),
    "is updated": (RUNNING, Poll("UPDATED to job-2", "follow job-2"), RUNNING, DONE),
    "is updated, and its successor is not named": (RUNNING, Poll("UPDATED", "failed, may run")),
    "has a state that this version does not know": (
        Poll("DREAMING", "warn 30"),
        Poll("DREAMING", "wait 30", "warn 30"),
        DONE,
    ),
    "is not found at first": (Poll("404", "warn 30"), RUNNING, DONE),
    "is not found": _failing("404", (30, 60, 120, 240), "failed"),
    "may not be read (403)": _failing("403", (30, 60), "unreachable, may run"),
    "cannot be read (503) for 32 min": _failing(
        "503", (30, 60, 120, 240, 300, 300, 300, 300, 300), "unreachable, may run"
    ),
    "cannot be read (503) for 30 min": (
        *_failing("503", (30, 60, 120, 240, 300, 300, 300, 300), "warn 300"),
        RUNNING,
        DONE,
    ),
    "may not be read now and then": (*[Poll("403", "warn 30"), RUNNING] * 3, DONE),
    "cannot be read, for one reason and another": (
        *(
            Poll(status, f"warn {wait}", "warn 30")
            for status, wait in zip(("403", "503") * 3, (30, 60, 120, 240, 300, 300), strict=True)
        ),
        DONE,
    ),
    "exceeds its budget": (
        Poll("RUNNING $5", "wait 30"),
        Poll("RUNNING $6", "cancel"),
        Poll("RUNNING $6", "cancel"),
        Poll("503", "warn 30"),
        Poll("RUNNING", "cancel", "wait 30"),
        Poll("CANCELLING $6", "wait 10"),
        Poll("CANCELLED $6", "over_budget"),
    ),
    "exceeds its budget, and has no counters at the end": (
        Poll("RUNNING $6", "cancel"),
        Poll("CANCELLED", "over_budget", "cancelled"),
    ),
    "exceeds its budget, and is done before it is cancelled": (
        Poll("RUNNING $6", "cancel"),
        Poll("DONE $6", "succeeded"),
    ),
    "exceeds its budget, and does not end when it is cancelled": (
        Poll("RUNNING $6", "cancel"),
        *[Poll("CANCELLING $6", "wait 10")] * 90,
        Poll("CANCELLING $6", "over_budget, may run", "wait 10"),
    ),
}


@dataclass(frozen=True)
class Moment:
    """What happens to a job, and what the next try does, if something happens to its task at a moment.

    Attributes:
        killed: The task is killed, and retried at once; also: cleared, and Airflow calls no `on_kill`.
        ended: The same, and the job ends before the next try.
        without_store: The same below Airflow 3.3, which has no state store.
        cleared: Airflow calls `on_kill`, and the next try begins.
        marked: Airflow calls `on_kill`; there is no other try.
        untold: Marked, and Airflow calls no `on_kill`, or `cancel_on_kill` is off.
    """

    killed: str
    ended: str
    without_store: str
    cleared: str
    marked: str
    untold: str


_NO_JOB = Moment(*["submits: DONE"] * 4, "no job", "no job")
_RUNNING = Moment(
    "attaches: DONE",
    "collects: DONE",
    "submits: DONE, DONE",
    "submits: CANCELLED, DONE",
    "CANCELLED",
    "RUNNING",
)
_OVER_BUDGET = "CANCELLED, DONE"
#: By the last thing that a task, or its trigger, has done or seen.
MOMENTS = {
    "nothing": _NO_JOB,
    "the intent to submit is recorded": _NO_JOB,
    "the job is submitted": _RUNNING,
    "the job's id is recorded": _RUNNING,
    "the job is done": Moment(*["collects: DONE"] * 2, "submits: DONE, DONE", "collects: DONE", *["DONE"] * 2),
    "the report is collected": Moment(*["submits: DONE, DONE"] * 4, *["DONE"] * 2),
    "the job has failed": Moment(*["submits: FAILED, DONE"] * 4, *["FAILED"] * 2),
    "over the budget: the workers are told to stop": Moment(
        f"submits: {_OVER_BUDGET}",
        "collects: DONE",
        "submits: DONE, DONE",
        f"submits: {_OVER_BUDGET}",
        "CANCELLED",
        "RUNNING",
    ),
    "over the budget: the job is being cancelled": Moment(*[f"submits: {_OVER_BUDGET}"] * 4, *["CANCELLED"] * 2),
    "over the budget: the job is cancelled": Moment(*[f"submits: {_OVER_BUDGET}"] * 4, *["CANCELLED"] * 2),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """What Airflow does when something happens to a task, and what that leaves.

    Attributes:
        calls: What Airflow calls.
        jobs: States of all jobs of the task, the oldest first.
        or_jobs: What it may leave as well; `None` if nothing.
        task: State of the task.
        is_paid_again: Whether answers that were in flight may be paid for again.
    """

    calls: str
    jobs: tuple[str, ...]
    or_jobs: tuple[str, ...] | None = None
    task: str = "success"
    is_paid_again: bool = False

    @property
    def running(self) -> int:
        """Number of jobs that are left running."""
        return self.jobs.count("RUNNING")


_AGAIN = ("CANCELLED", "DONE")
#: What happens, on a real Airflow.
CASES = {
    "killed with -9 before it recorded the job's id": Case(calls="nothing; the next try", jobs=("DONE",)),
    "killed with -9 while it collects the report": Case(calls="nothing; the next try", jobs=("DONE",)),
    "marked failed while it waits in the worker": Case(
        calls="`on_kill` of the operator", jobs=("CANCELLED",), task="failed"
    ),
    "`execution_timeout` while it waits in the worker": Case(
        calls="raises in `execute`", jobs=("CANCELLED",), task="failed"
    ),
    "marked failed while deferred": Case(calls="`on_kill` of the trigger", jobs=("CANCELLED",), task="failed"),
    # The trigger leaves the job alone if the next try waits for it by then.
    "cleared while deferred": Case(
        calls="`on_kill` of the trigger; the next try", jobs=_AGAIN, or_jobs=("DONE",), is_paid_again=True
    ),
    "`dagrun_timeout` while deferred": Case(calls="`on_kill` of the trigger", jobs=("CANCELLED",), task="skipped"),
    "`execution_timeout` while deferred": Case(
        calls="`resume_execution` with an error", jobs=("CANCELLED",), task="failed"
    ),
    "trigger taken over by another triggerer": Case(
        calls="`on_kill` of the trigger, and another trigger", jobs=("DONE",)
    ),
    "triggerer killed, and another one started": Case(calls="another trigger", jobs=("DONE",)),
    "marked failed while no triggerer runs": Case(calls="nothing", jobs=("RUNNING",), task="failed"),
    # A triggerer that comes back sometimes takes up the trigger of the marked task for a second, and cancels.
    "marked failed while no triggerer runs, then cleared": Case(
        calls="the next try", jobs=("DONE",), or_jobs=_AGAIN, is_paid_again=True
    ),
    "scheduler killed and started, task deferred": Case(calls="nothing", jobs=("DONE",)),
    # A new scheduler takes over no task of a LocalExecutor: it ends this try, and starts another.
    "scheduler killed and started, task in the worker": Case(
        calls="`on_kill` of the operator; the next try", jobs=_AGAIN, is_paid_again=True
    ),
}


def _table(*rows: Iterable[str]) -> str:
    head, *others = [f"| {' | '.join(row)} |\n" for row in rows]
    return "".join([head, "|" + " --- |" * (head.count(" | ") + 1) + "\n", *others])


def _or(*alternatives: tuple[str, ...] | None) -> str:
    return " or ".join(", ".join(jobs) for jobs in alternatives if jobs)


def _decisions(polls: Iterable[Poll]) -> str:
    texts = groupby(f"{poll.report}: **{poll.decision}**" for poll in polls)
    found = [(text, len([*same])) for text, same in texts]
    return " → ".join(f"{text} × {times}" if times > 1 else text for text, times in found)


def tables() -> Iterator[str]:
    """Yields the tables of the page, in order."""
    yield _table(
        ("the task is …", "Airflow calls", "jobs", "task", "left running"),
        *(
            (name, case.calls, _or(case.jobs, case.or_jobs), case.task, str(case.running))
            for name, case in CASES.items()
        ),
    )
    yield _table(
        (
            "done or seen last",
            "killed, next try at once",
            "next try after the job's end",
            "the same without a state store",
            "cleared",
            "marked",
            "marked, no `on_kill`",
        ),
        *((name, *astuple(moment)) for name, moment in MOMENTS.items()),
    )
    yield _table(
        ("the job …", "polls and decisions"), *((name, _decisions(polls)) for name, polls in LIVES.items())
    )


def with_tables(page: str) -> str:
    """Returns a page with its tables replaced."""
    new = tables()
    return re.sub(r"(?:^\|.*\n)+", lambda _: next(new), page, flags=re.MULTILINE)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
