"""Every moment of a job on Dataflow, on the deciders themselves with a service, files and a store in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count, product

import pytest

from airflow_provider_llmbeam.exceptions import (
    AccessDeniedError,
    CloudNotFoundError,
    CloudUnavailableError,
    LLMBeamError,
)
from airflow_provider_llmbeam.jobs.launcher import JobLauncher
from airflow_provider_llmbeam.jobs.monitor import JobMonitor
from airflow_provider_llmbeam.jobs.state_machine import (
    CANCELLING_SECONDS,
    Follow,
    JobEnded,
    JobStateMachine,
    OverBudget,
)
from airflow_provider_llmbeam.polling.poller import Wait, poll_until_result
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.identity import dataflow_name, labels
from airflow_provider_llmbeam.spec.protocol.counts import NANO, Counts
from airflow_provider_llmbeam.spec.remote_job import RemoteJob
from tests.unit.jobs.moments import BUDGET_USD, LIVES, MOMENTS, PAGE, Poll, with_tables
from tests.unit.jobs.values import dataflow_job

pytestmark = [pytest.mark.promise(1), pytest.mark.promise(2)]
ERRORS = {"404": CloudNotFoundError, "403": AccessDeniedError, "503": CloudUnavailableError}


def test_the_page_has_these_tables():
    assert PAGE.read_text() == with_tables(PAGE.read_text()), "python -m tests.unit.jobs.moments"


# The polls of a job.


class Watch:
    """A state machine and its clock."""

    def __init__(self, now: float = 0.0) -> None:
        self.machine, self.now = JobStateMachine(30, BUDGET_USD), now

    def decide(self, report: str) -> str:
        """Takes a report, advances the clock by the wait that follows, and returns the decision as text."""
        if report in ERRORS:
            decision = self.machine.on_error(ERRORS[report](f"HTTP {report}."), self.now)
        else:
            named, _, cost = report.partition(" $")
            state, _, successor = named.partition(" to ")
            job = dataflow_job("job-1", "n-12345678", f"JOB_STATE_{state}", replaced_by=successor or None)
            decision = self.machine.on_job(job, float(cost) if cost else None, self.now)
        match decision:
            case Wait(seconds, message):
                self.now += seconds
                return f"{'warn' if message else 'wait'} {seconds:.0f}"
            case Follow(job_id):
                return f"follow {job_id}"
            case OverBudget():
                self.now += CANCELLING_SECONDS
                return "cancel"
            case JobEnded(outcome, _, may_run):
                return f"{outcome}, may run" if may_run else outcome

    def play(self, polls: tuple[Poll, ...]) -> list[str]:
        return [self.decide(poll.report) for poll in polls]


def prefixes(name: str):
    """Yields the polls from each moment on, and a watch that has taken those before."""
    for moment in range(len(LIVES[name])):
        watch = Watch()
        watch.play(LIVES[name][:moment])
        yield watch, LIVES[name][moment:]


@pytest.mark.parametrize("name", LIVES)
def test_the_polls_of_a_job_lead_to_these_decisions(name):
    assert Watch().play(LIVES[name]) == [poll.decision for poll in LIVES[name]]


@pytest.mark.parametrize("name", LIVES)
def test_a_history_that_is_lost_at_any_moment_ends_no_wait_sooner_and_reads_each_end_of_the_job(name):
    for watch, rest in prefixes(name):
        first, *_, last = decisions = Watch(now=watch.now).play(rest) * 2
        assert first == (rest[0].anew or rest[0].decision)
        end = rest[-1]
        is_limit = end.anew.startswith(("wait", "warn"))
        assert last in (end.decision, end.anew) or (is_limit and last.startswith(("wait", "warn"))), decisions


# The tries of a task.


class KilledError(BaseException):
    """kill -9."""


class World:
    """Dataflow, Cloud Storage and Airflow's state store, for one task, which can be killed before any request."""

    project = "acme-prod"

    def __init__(self, states: tuple[str, ...], *, cost_usd: float = 0.0) -> None:
        self.done: list[str] = []
        self.dies_at: int | None = None
        self.jobs: dict[str, RemoteJob] = {}
        self._coming = {"job-1": [*states]}
        self._cost_usd = cost_usd
        self._kept: dict[str, dict] = {}
        self._written: set[str] = set()
        self.now = 0.0

    def request(self, moment: str = "") -> None:
        """A request of the task; `moment` is that after it, if it changes anything."""
        if len(self.done) == self.dies_at:
            raise KilledError
        self.done.append(moment)

    @property
    def moment(self) -> str:
        return next((moment for moment in reversed(self.done) if moment), "nothing")

    @property
    def states(self) -> str:
        return ", ".join(job.state.removeprefix("JOB_STATE_") for job in self.jobs.values()) or "no job"

    def log(self, *_: object) -> None:
        pass

    info = warning = error = log

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def turn(self, job_id: str, state: str) -> None:
        job = self.jobs[job_id]
        self.jobs[job_id] = dataflow_job(job_id, job.name, f"JOB_STATE_{state}", job.created_at, job.labels)

    def go_on(self, end: str | None = None) -> None:
        """Lets some time pass: a job that is being cancelled ends, and so do others if there is an end."""
        for job in self.jobs.values():
            if job.phase == "cancelling" or (end and not job.is_over):
                self.turn(job.job_id, "CANCELLED" if job.phase == "cancelling" else end)

    # Dataflow

    def check(self, spec: JobSpec) -> None:
        pass

    def submit(self, spec: JobSpec, start: object) -> str:
        self.request("the job is submitted")
        for job in self.jobs.values():
            assert job.is_over, "two active jobs at once"
        job_id, name = f"job-{len(self.jobs) + 1}", dataflow_name(spec)
        self.jobs[job_id] = dataflow_job(job_id, name, "JOB_STATE_RUNNING", datetime.now(UTC), labels(spec))
        self._written.clear()  # the job removes its stop file when it starts
        return job_id

    def find(self, identity: str, *, active_only: bool = False) -> list[RemoteJob]:
        self.request()
        return [job for job in self.jobs.values() if not (active_only and job.is_over)]

    def get(self, job_id: str, within_seconds: float | None = None) -> RemoteJob:
        coming = self._coming.setdefault(job_id, ["DONE"])
        is_cancelling = self.jobs[job_id].phase == "cancelling"
        moment = ""
        if within_seconds is None and not self.jobs[job_id].is_over:
            state = "CANCELLED" if is_cancelling else coming[0]
            moment = MOMENT_OF_STATE.get(state, "")
            self.request(moment)
            self.turn(job_id, state)
            del coming[: len(coming) > 1]
        else:
            self.request()
        return self.jobs[job_id]

    def cancel(self, job_id: str) -> None:
        self.request("over the budget: the job is being cancelled")
        if not self.jobs[job_id].is_over:
            self.turn(job_id, "CANCELLING")

    def counts(self, job_id: str, *, running: bool) -> Counts:
        self.request()
        return Counts(rows=1, cost_nano_usd=int(self._cost_usd * NANO) if job_id == "job-1" else 0)

    def error_messages(self, job_id: str) -> list[str]:
        self.request()
        return []

    # Cloud Storage

    def files(self, uri: str) -> World:
        return self

    def exists(self, uri: str) -> bool:
        self.request()
        return uri in self._written

    def write(self, uri: str, text: str, within_seconds: float | None = None) -> None:
        self.request("over the budget: the workers are told to stop")
        self._written.add(uri)

    def read(self, uri: str) -> str:
        self.request()
        return json.dumps({"rows": {"read": 1, "answered": 1, "dead_letter": 0}})


class Store:
    """Airflow's state store of the task."""

    def __init__(self, world: World) -> None:
        self._world = world

    def get(self, key: str) -> dict | None:
        self._world.request()
        return self._world._kept.get(key)

    def set(self, key: str, value: dict) -> None:
        self._world.request("the job's id is recorded" if "id" in value else "the intent to submit is recorded")
        self._world._kept[key] = value

    def delete(self, key: str) -> None:
        self._world.request("the report is collected")
        del self._world._kept[key]


MOMENT_OF_STATE = {
    "DONE": "the job is done",
    "FAILED": "the job has failed",
    "CANCELLED": "over the budget: the job is cancelled",
}


SPEC = JobSpec.parse(
    {
        "name": "nightly",
        "source": {"uri": "gs://b/in.jsonl", "key": ["id"]},
        "prompt": {"template": "{{ row.t }}"},
        "model": {"type": "echo"},
        "sink": {"uri": "gs://b/out"},
        "runner": {"type": "dataflow", "project": "acme-prod", "location": "europe-west1"},
    }
)


def play_try(world: World, store: Store | None) -> str:
    """Plays a try of the task, as the operator and its trigger do; returns how it got its job."""
    launcher, before = JobLauncher(lambda _: world, store, world), len(world.jobs)
    job = launcher.obtain(SPEC)
    how = "submits" if len(world.jobs) > before else "collects" if world.jobs[job.id].is_over else "attaches"
    monitor = JobMonitor(
        lambda: world,
        job,
        machine=JobStateMachine(30, BUDGET_USD),
        log=world,
        now=lambda: world.now,
    )
    with suppress(LLMBeamError):
        launcher.collect(job, poll_until_result(monitor, world.sleep))
    return how


def on_kill(world: World) -> None:
    JobLauncher(lambda _: world, None, world).abandon_all(SPEC, "The task was killed.")


def killed(world):
    return f"{play_try(world, Store(world))}: {world.states}"


def ended(world):
    world.go_on("DONE")
    return killed(world)


def without_store(world):
    world.go_on("DONE")
    return f"{play_try(world, None)}: {world.states}"


def cleared(world):
    on_kill(world)
    return killed(world)


def marked(world):
    on_kill(world)
    return untold(world)


def untold(world):
    world.go_on()
    return world.states


#: The first job of a task, and the beginning of the moments that only such a job comes to.
TASKS = {
    "done": (lambda: World(("RUNNING", "RUNNING", "DONE")), ""),
    "failed": (lambda: World(("RUNNING", "FAILED")), "the job has failed"),
    "over the budget": (lambda: World(("RUNNING",), cost_usd=BUDGET_USD + 1), "over the budget"),
}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr("airflow_provider_llmbeam.jobs.cancellation.DRAIN_SECONDS", 0.0)
    monkeypatch.setattr("airflow_provider_llmbeam.jobs.launcher._POLL_SECONDS", 0.0)


def worlds_of(task: str) -> Iterator[World]:
    """Yields the world after a try that was killed before its first request, its second, and so on; or not."""
    make, moments = TASKS[task]
    for number in count():
        world = make()
        was_killed = is_killed(world, number)
        if world.moment.startswith(moments):
            yield world
        if not was_killed:
            return


def is_killed(world: World, number: int) -> bool:
    """Plays a try that is killed before a request; returns whether it was, or false if it ended before."""
    world.dies_at = len(world.done) + number
    try:
        play_try(world, Store(world))
    except KilledError:
        return True
    finally:
        world.dies_at = None
    return False


@pytest.mark.parametrize("happens", [killed, ended, without_store, cleared, marked, untold])
@pytest.mark.parametrize("task", TASKS)
def test_what_happens_at_any_moment_leaves_one_active_job_at_most_and_runs_none_again_that_is_done(task, happens):
    for world in worlds_of(task):
        moment = world.moment
        assert happens(world) == getattr(MOMENTS[moment], happens.__name__), moment


def test_the_tasks_come_to_each_moment():
    assert {world.moment for task in TASKS for world in worlds_of(task)} == {*MOMENTS}


def test_a_task_that_is_killed_at_any_two_moments_has_one_job_that_is_done():
    requests = len([*worlds_of("done")]) - 1
    for first, second in product(range(requests), repeat=2):
        world = TASKS["done"][0]()
        assert is_killed(world, first)
        if is_killed(world, second):
            killed(world)
        assert world.states == "DONE", (first, second)
