"""Runs of batch inference drawn at random, and what each costs beside the best that was possible."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from airflow_provider_llmbeam.pipeline.batch_inference.decide import (
    BatchPlan,
    Cancel,
    FileState,
    Finish,
    MonitorHistory,
    Submit,
    decide,
)
from airflow_provider_llmbeam.pipeline.batch_inference.ways import PRIOR
from airflow_provider_llmbeam.providers.batch import BatchJob, BatchPhase
from airflow_provider_llmbeam.spec.facts import TIER_RATIOS

ROWS = 1000
HOUR = 3600.0
#: Time after which a job expires: 48 h, as on the Gemini Developer API.
_EXPIRY_SECONDS = 48 * HOUR
_START = 1_800_000_000.0
_MAX_DECISIONS = 100_000


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of one submission.

    Attributes:
        seconds: Time until its end.
        phase: Phase in which it ends.
        answered: Number of its rows that have a valid answer then.
        counted: Number of rows that the provider counts as answered; malformed lines are among them.
    """

    seconds: float
    phase: BatchPhase
    answered: int
    counted: int


def _succeeds(seconds: float, answered: int = ROWS, counted: int | None = None) -> Fate:
    return Fate(seconds, "succeeded", answered, answered if counted is None else counted)


def _drawn(draw: random.Random) -> Fate:
    seconds, weights = zip(*PRIOR, strict=True)
    return _succeeds(draw.choices(seconds, weights)[0] * draw.lognormvariate(0, 0.5))


#: Fates of a submission, by the name of the case.
SHAPES: dict[str, Callable[[random.Random], Fate]] = {
    "5 minutes": lambda _: _succeeds(300),
    "3 hours": lambda _: _succeeds(3 * HOUR),
    "queued for ever": lambda _: Fate(_EXPIRY_SECONDS, "expired", 0, 0),
    "fails whole": lambda draw: Fate(draw.uniform(60, 600), "failed", 0, 0),
    "fails whole at first": lambda draw: (
        Fate(300, "failed", 0, 0) if draw.random() < 0.5 else _succeeds(draw.uniform(300, HOUR))
    ),
    "every row fails": lambda _: _succeeds(1_800, 0),
    "a tenth of the rows fails": lambda _: _succeeds(1_800, ROWS * 9 // 10),
    "1 % malformed lines": lambda _: _succeeds(1_800, ROWS * 99 // 100, ROWS),
    "expires": lambda _: Fate(_EXPIRY_SECONDS / 2, "expired", ROWS // 2, ROWS // 2),
    "stuck at 99 %": lambda _: Fate(_EXPIRY_SECONDS, "expired", ROWS * 99 // 100, ROWS * 99 // 100),
    "drawn turnaround": _drawn,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run.

    Attributes:
        shape: Name of the fates of its jobs.
        files: Number of request files, of `ROWS` rows each.
        plan: Deadline, and the time that all rows take online.
        room: Number of jobs that the provider takes at a time; `None` for no limit.
        obeys: Whether a cancelled job ends; it then returns nothing.
        slower: True time online over the estimated one; within the margin.
        seed: Seed of the fates.
    """

    shape: str
    files: int
    plan: BatchPlan
    room: int | None
    obeys: bool
    slower: float
    seed: int

    @classmethod
    def draw(cls, shape: str, seed: int) -> Case:
        """Draws a run; it has time for batch inference, else `auto` submits nothing."""
        draw = random.Random(f"{shape} {seed}")
        plan = BatchPlan(
            started_at=_START,
            deadline_at=_START + draw.uniform(2, 24) * HOUR,
            max_wait_seconds=24 * HOUR,
            online_seconds=draw.uniform(60, HOUR),
        )
        files = draw.randint(1, 8)
        room = draw.choice((None, None, 1, 3))
        return cls(
            shape=shape,
            files=files,
            plan=plan,
            room=room,
            obeys=draw.random() < 0.8,
            slower=draw.uniform(0.8, 1.15),
            seed=seed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """What a run cost.

    Attributes:
        shape: Name of the fates of its jobs.
        cost: Cost over that of all rows online.
        oracle: The same of an oracle that knows every turnaround, and has only the provider's room for jobs.
        spare_seconds: Time from the last answer to the deadline; negative if it was missed.
        polls: Number of polls.
    """

    shape: str
    cost: float
    oracle: float
    spare_seconds: float
    polls: int


def run(case: Case) -> CaseResult:
    """Simulates a run until its decision to finish, and its rest online."""
    draw = random.Random(f"fates {case.shape} {case.seed}")
    names = [f"file-{number}" for number in range(case.files)]
    fates = {name: [SHAPES[case.shape](draw) for _ in range(2)] for name in names}
    files = {name: FileState(display_name=name, rows=ROWS) for name in names}
    now, history, polls = _START, MonitorHistory(), 0
    for _ in range(_MAX_DECISIONS):
        files = {name: _polled(file, fates[name], now) for name, file in files.items()}
        active = sum(file.job is not None and not file.job.has_ended for file in files.values())
        room = None if case.room is None else case.room - active
        decision, history = decide(list(files.values()), case.plan, history, now, room=room)
        match decision:
            case Submit(submitted):
                for name in submitted:
                    files[name] = _submitted(files[name], now)
            case Cancel(cancelled):
                for name in cancelled:
                    job = files[name].job
                    if case.obeys and job is not None:
                        files[name] = replace(files[name], job=replace(job, phase="cancelled"))
            case Finish():
                break
            case wait:
                polls, now = polls + 1, now + wait.seconds
    else:
        raise RuntimeError(f"No end after {_MAX_DECISIONS} decisions: {case}")
    answered = sum(_answered(file, fates[file.display_name]) for file in files.values())
    total = case.files * ROWS
    online = (case.plan.online_seconds or 0.0) * (1 - answered / total) * case.slower
    deadline = case.plan.deadline_at or float("inf")
    return CaseResult(
        shape=case.shape,
        cost=1 - TIER_RATIOS["batch"] * answered / total,
        oracle=1 - TIER_RATIOS["batch"] * _best(case, fates) / total,
        spare_seconds=deadline - now - online,
        polls=polls,
    )


def _submitted(file: FileState, now: float) -> FileState:
    name = file.display_name
    job = BatchJob(name=name, display_name=name, state="QUEUED", phase="queued", created_at=now)
    return replace(file, job=job, submits=file.submits + 1)


def _polled(file: FileState, fates: list[Fate], now: float) -> FileState:
    job = file.job
    if job is None or job.has_ended:
        return file
    fate = fates[file.submits - 1]
    if now < job.created_at + fate.seconds:
        return file
    results = ("results",) if fate.answered else ()
    return replace(
        file,
        job=replace(job, phase=fate.phase, answered=fate.counted, failed=ROWS - fate.counted, results=results),
    )


def _answered(file: FileState, fates: list[Fate]) -> int:
    is_read = file.job is not None and file.job.has_ended and file.job.phase != "cancelled"
    return fates[file.submits - 1].answered if is_read else 0


def _best(case: Case, fates: dict[str, list[Fate]]) -> int:
    """Returns the rows that batch inference can answer in time: the quickest files first.

    An upper bound: the rows that remain are taken to be answered online beside it.
    """
    window = (case.plan.deadline_at or float("inf")) - _START
    useful = sorted((fate.seconds, fate.answered) for fate in (_counted_fate(each) for each in fates.values()))
    slots = [0.0] * (case.room or case.files)
    answered = 0
    for seconds, rows in useful:
        first = min(range(len(slots)), key=slots.__getitem__)
        if rows and slots[first] + seconds <= window:
            slots[first] += seconds
            answered += rows
    return answered


def _counted_fate(fates: list[Fate]) -> Fate:
    """Returns the fate that counts: a second submission follows one that failed as a whole."""
    first, second = fates
    if first.phase != "failed":
        return first
    return replace(second, seconds=first.seconds + second.seconds)
