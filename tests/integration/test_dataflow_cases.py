"""What becomes of a job on Dataflow when something happens to its task, or to Airflow: one job, no row paid twice.

Every case is a run of its own. They all share one Airflow and one sandbox, play at the same time where they leave
Airflow itself alone, and one after the other where they take a part of it down. Prints a table of what each left.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import httpx
import psutil
import psycopg
import pytest
from local_airflow import local_airflow

from airflow_provider_llmbeam.sandbox import Fault, Latency, Proxy, Sandbox, prompt_sha256
from airflow_provider_llmbeam.spec.identity import JOB_LABEL, identity
from airflow_provider_llmbeam.tasks.identity import job_name

DAGS = Path(__file__).parent / "dags"
PAGE = Path(__file__).parents[2] / "docs" / "dataflow-cases.md"
TASK = "ask"
PATIENCE_SECONDS = 400
#: Per second a job answers four rows: two at a time, half a second each.
LATENCY = Latency(mean_seconds=0.5)
#: Answers that a cancelled job may take with it: one batch of four in each of a worker's four threads. An object
#: store shows a segment of the journal when it is closed, at the end of its batch.
IN_FLIGHT = 16
#: Two beats of a scheduler's heart and its loop.
BEATS_SECONDS = 7
AT_ONCE = 5
ACTIVE = {f"JOB_STATE_{name}" for name in ("QUEUED", "PENDING", "RUNNING", "CANCELLING")}
DONE, CANCELLED, RUNNING = "DONE", "CANCELLED", "RUNNING"


@dataclass(frozen=True, kw_only=True)
class Left:
    """What a case left behind.

    Attributes:
        jobs: States of all jobs that the task ever had, the oldest first.
        at_once: Most jobs that were active at any time.
        task: State of the task.
        tries: Of the task.
        rows: Of the source.
        answered: Rows in the output; none where nothing was published.
        paid_twice: Answers that were paid for beyond one per row.
        running: Jobs that still run, and bill.
    """

    jobs: tuple[str, ...]
    at_once: int
    task: str
    tries: int
    rows: int
    answered: int | None
    paid_twice: int
    running: int


class Run:
    """One run of a Dag of `dags/on_dataflow.py`: a task, and the jobs it has on Dataflow."""

    _numbers = count(1)

    def __init__(self, cloud: Cloud, dag_id: str, rows: int) -> None:
        self.cloud, self.dag_id = cloud, dag_id
        self.case = f"case-{next(self._numbers)}"
        self.texts = [f"{self.case} {number}" for number in range(rows)]
        lines = "".join(json.dumps({"id": number, "text": text}) + "\n" for number, text in enumerate(self.texts))
        cloud.upload(f"{self.case}/in.jsonl", lines)
        self.run_id = cloud.airflow.trigger(dag_id, {"case": self.case})
        task = SimpleNamespace(dag_id=dag_id, task_id=TASK, run_id=self.run_id, map_index=-1)
        self.name = job_name(task)

    @property
    def jobs(self) -> list[dict]:
        """Found as a person or a sweeper finds them, by the label; the oldest first."""
        label = identity(self.name)
        return [job for job in self.cloud.sandbox.dataflow.jobs[::-1] if job["labels"].get(JOB_LABEL) == label]

    @property
    def active(self) -> list[dict]:
        return [job for job in self.jobs if job["currentState"] in ACTIVE]

    @property
    def task(self) -> dict:
        return self.cloud.airflow.task(self.dag_id, self.run_id, TASK)

    def paid(self) -> int:
        prompts = self.cloud.sandbox.requests.paid("gemini.generateContent")
        return sum(prompts[prompt_sha256(f"Say {text}")] for text in self.texts)

    def log(self) -> str:
        tries = range(1, self.task["try_number"] + 1)
        lines = [self.cloud.airflow.log_lines(self.dag_id, self.run_id, TASK, number) for number in tries]
        return "\n".join(line for one in lines for line in one)

    def until(self, condition: Callable[[], object], what: str, pause_seconds: float = 0.5):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (value := condition()):
            if time.monotonic() > deadline:
                task = self.task
                jobs = [job["currentState"] for job in self.jobs]
                words = f"never: {what}; the task is {task['state']}, its jobs {jobs}"
                raise AssertionError(f"{words}\n{self.log()[-3000:]}")
            time.sleep(pause_seconds)
        return value

    def until_state(self, *states: str) -> None:
        self.until(lambda: self.task["state"] in states, f"the task is {states}")

    def until_says(self, words: str) -> None:
        self.until(lambda: words in self.log(), f"the log says {words!r}", pause_seconds=1)

    def until_paying(self) -> None:
        """Until the job has answered some rows, and the task waits for it."""
        self.until(lambda: self.paid() >= 8 and self.active, "some rows are answered", pause_seconds=0.1)
        self.until(lambda: "is in state" in self.log(), "the task waits", pause_seconds=1)

    def until_running(self) -> None:
        self.until(lambda: any(job["currentState"] == "JOB_STATE_RUNNING" for job in self.jobs), "the job runs")

    def until_trigger(self) -> None:
        """Until the job runs, and the trigger has looked at it; the task itself has looked before it deferred."""
        self.until_running()
        self.until(lambda: self.log().count("is in state JOB_STATE") >= 2, "the trigger looks", pause_seconds=1)

    def process(self) -> psutil.Process:
        """The process of the task, once it runs."""
        title = f"airflow worker -- {self.task['id']}"
        return self.until(lambda: next(titled(title), None), "the task has a process", pause_seconds=0.02)

    def child(self) -> psutil.Process:
        """The process that submits the job, once it runs."""
        return self.until(lambda: next(submitting(self.case), None), "a child submits", pause_seconds=0.05)

    def held_child(self) -> psutil.Process:
        """The same, halted until it is resumed, so that the job starts when the case wants it."""
        child = self.child()
        child.suspend()
        return child

    def mark(self, state: str) -> None:
        self.cloud.airflow.set_task_state(self.dag_id, self.run_id, TASK, state)

    def clear(self) -> None:
        self.cloud.airflow.clear(self.dag_id, self.run_id)

    def end(self, *states: str) -> None:
        """Until the run is over, and each of its jobs is, too."""
        self.until_state(*(states or ("success",)))
        self.until(lambda: not self.active, "no job is active")

    def left(self) -> Left:
        jobs, task = self.jobs, self.task
        moments = [(job["createTime"], 1) for job in jobs]
        moments += [(job["currentStateTime"], -1) for job in jobs if job["currentState"] not in ACTIVE]
        active, most = 0, 0
        for _, step in sorted(moments):
            active += step
            most = max(most, active)
        prompts = self.cloud.sandbox.requests.paid("gemini.generateContent")
        answers = self.cloud.download(f"{self.case}/out/answers-00000-of-00001.jsonl")
        return Left(
            jobs=tuple(job["currentState"].removeprefix("JOB_STATE_") for job in jobs),
            at_once=most,
            task=task["state"],
            tries=task["try_number"],
            rows=len(self.texts),
            answered=None if answers is None else len({json.loads(line)["id"] for line in answers.splitlines()}),
            paid_twice=sum(max(0, prompts[prompt_sha256(f"Say {text}")] - 1) for text in self.texts),
            running=len(self.active),
        )


@dataclass
class Cloud:
    """The sandbox, Airflow, and what the cases left."""

    sandbox: Sandbox
    airflow: object
    database: str
    left: dict[str, Left | BaseException] = field(default_factory=dict)

    def run(self, dag_id: str, rows: int) -> Run:
        return Run(self, dag_id, rows)

    def upload(self, name: str, text: str) -> None:
        url = f"{self.sandbox.url}/upload/storage/v1/b/rows/o"
        httpx.post(url, params={"uploadType": "media", "name": name}, content=text).raise_for_status()

    def download(self, name: str) -> str | None:
        answer = httpx.get(
            f"{self.sandbox.url}/storage/v1/b/rows/o/{quote(name, safe='')}", params={"alt": "media"}
        )
        return None if answer.status_code == 404 else answer.raise_for_status().text

    def execute(self, statement: str, *values: object) -> list[tuple]:
        with psycopg.connect(self.database, autocommit=True) as connection:
            cursor = connection.execute(statement, values)
            return cursor.fetchall() if cursor.description else []

    def is_hanging(self, words: str) -> bool:
        return any(record.http_status is None and words in record.resource for record in self.sandbox.requests)

    def beats(self, kind: str) -> datetime:
        """The last sign of life of a component."""
        ((at,),) = self.execute("SELECT max(latest_heartbeat) FROM job WHERE job_type = %s", kind)
        return at

    def revive(self, name: str, kind: str) -> None:
        """Sees whether a component has lived through something, and starts another where it has not."""
        before, deadline = self.beats(kind), time.monotonic() + PATIENCE_SECONDS
        while self.airflow.is_running(name):
            if (self.beats(kind) - before).total_seconds() > BEATS_SECONDS:
                return
            assert time.monotonic() < deadline, f"the {name} neither lives nor ends"
            time.sleep(0.2)
        self.airflow.start(name)

    def wait_beats(self, kind: str, beats: int = 2) -> None:
        for _ in range(beats):
            before, deadline = self.beats(kind), time.monotonic() + PATIENCE_SECONDS
            while self.beats(kind) == before:
                assert time.monotonic() < deadline, f"no {kind} is alive"
                time.sleep(0.2)


def titled(title: str):
    for process in psutil.process_iter(["cmdline"]):
        if process.info["cmdline"] and process.info["cmdline"][0] == title:
            yield process


def submitting(case: str):
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or ()
        if "--submit" in words and "airflow_provider_llmbeam.pipeline" in words:
            (spec,) = (word.removeprefix("--spec=") for word in words if word.startswith("--spec="))
            try:
                is_ours = f"/{case}/" in Path(spec).read_text()
            except OSError:
                continue
            if is_ours:
                yield process


def tree(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


# Cases that leave Airflow alone: each gets the cloud and returns its run.


def killed_before_it_asks(cloud: Cloud) -> Run:
    run = cloud.run("deferred", 40)
    run.until_state("running")
    run.process().kill()
    assert not run.jobs
    run.end()
    return run


def killed_while_submitting(cloud: Cloud) -> Run:
    run = cloud.run("deferred", 40)
    run.child().parent().kill()
    assert not run.jobs
    run.end()
    return run


def killed_before_it_is_told(cloud: Cloud) -> Run:
    run = cloud.run("deferred", 90)
    process = run.child().parent()
    run.until(lambda: run.jobs, "Dataflow has the job", pause_seconds=0.01)
    process.kill()
    run.end()
    assert "Attaching to job" in run.log()
    return run


def killed_and_tried_late(cloud: Cloud) -> Run:
    run = cloud.run("deferred_late", 24)
    process = run.child().parent()
    run.until(lambda: run.jobs, "Dataflow has the job", pause_seconds=0.01)
    process.kill()
    run.until_state("up_for_retry")
    run.until(lambda: not run.active, "the job is over")
    late = "UPDATE task_instance SET end_date = end_date - interval '2 hours' WHERE run_id = %s"
    cloud.execute(late, run.run_id)
    run.end()
    assert "is done: collecting its report" in run.log()
    return run


def killed_while_waiting(cloud: Cloud) -> Run:
    run = cloud.run("waiting", 90)
    run.until_paying()
    run.process().kill()
    run.end()
    assert "Attaching to job" in run.log()
    return run


def killed_while_collecting(cloud: Cloud) -> Run:
    run = cloud.run("deferred", 40)
    run.until(lambda: [job for job in run.jobs if job["currentState"] == "JOB_STATE_DONE"], "it is done", 0.05)
    report = f"{run.case}/out/report.json"
    cloud.sandbox.faults.when("storage.objects.get", report, Fault(kind="hang"), times=1)
    run.until(lambda: cloud.is_hanging(report), "the task reads the report", pause_seconds=0.05)
    run.process().kill()
    run.end()
    assert "is done: collecting its report" in run.log()
    return run


def cleared(cloud: Cloud) -> Run:
    run = cloud.run("deferred", 60)
    run.until_paying()
    run.until_trigger()
    run.clear()
    run.until(lambda: len(run.jobs) > 1, "another job takes over")
    run.end()
    return run


def cleared_in_worker(cloud: Cloud) -> Run:
    run = cloud.run("waiting", 60)
    run.until_paying()
    run.clear()
    run.until(lambda: len(run.jobs) > 1, "another job takes over")
    run.end()
    return run


def marked_failed(cloud: Cloud) -> Run:
    run = cloud.run("deferred", 240)
    run.until_trigger()
    run.mark("failed")
    run.end("failed")
    run.until_says("The task was marked or cleared while deferred. Dataflow job")
    run.until_says("was cancelled. The answers so far are kept")
    return run


def marked_failed_in_worker(cloud: Cloud) -> Run:
    run = cloud.run("waiting", 240)
    run.until_paying()
    run.mark("failed")
    run.end("failed")
    run.until_says("The task was killed. Dataflow job")
    return run


def marked_success(cloud: Cloud) -> Run:
    run = cloud.run("deferred", 240)
    run.until_trigger()
    run.mark("success")
    run.end("success")
    run.until_says("The task was marked or cleared while deferred. Dataflow job")
    run.until_says("was cancelled. The answers so far are kept")
    return run


def kept(cloud: Cloud) -> Run:
    run = cloud.run("deferred_kept", 600)
    run.until_trigger()
    run.mark("failed")
    run.until_says(
        "is left running and billing (`runner.cancel_on_kill` is off). To cancel it: gcloud dataflow jobs"
    )
    return run


def run_timeout(cloud: Cloud) -> Run:
    run = cloud.run("deferred_run_timeout", 240)
    run.until_trigger()
    cloud.execute("UPDATE dag_run SET start_date = start_date - interval '2 hours' WHERE run_id = %s", run.run_id)
    run.until_state("skipped")
    run.end("skipped")
    return run


def timeout_deferred(cloud: Cloud) -> Run:
    run = cloud.run("deferred_timeout", 240)
    run.until_trigger()
    cloud.execute("UPDATE task_instance SET trigger_timeout = now() WHERE run_id = %s", run.run_id)
    run.end("failed")
    run.until_says("Waiting for the job ended with TaskDeferralTimeout.")
    return run


def timeout_in_worker(cloud: Cloud) -> Run:
    run = cloud.run("waiting_timeout", 600)
    run.until_paying()
    run.end("failed")
    run.until_says("was cancelled")
    return run


@dataclass(frozen=True)
class Case:
    """A case, and what it must leave.

    Attributes:
        play: Plays it; none where it is played with others.
        jobs: States of all its jobs, the oldest first.
        task: State of its task.
        paid_twice: At most.
        or_jobs: What it may leave as well.
    """

    play: Callable[[Cloud], Run] | None
    jobs: tuple[str, ...]
    task: str = "success"
    paid_twice: int = 0
    or_jobs: tuple[str, ...] | None = None


#: In the order in which they begin: long ones first. Those without a function are recorded by `take_down`.
CASES = {
    "`execution_timeout` while it waits in the worker": Case(timeout_in_worker, (CANCELLED,), "failed"),
    "cleared while deferred": Case(cleared, (CANCELLED, DONE), paid_twice=IN_FLIGHT),
    "cleared while it waits in the worker": Case(cleared_in_worker, (CANCELLED, DONE), paid_twice=IN_FLIGHT),
    "task killed before it asks for a job": Case(killed_before_it_asks, (DONE,)),
    "task killed while the child submits": Case(killed_while_submitting, (DONE,)),
    "task killed when the job exists, and it does not know yet": Case(killed_before_it_is_told, (DONE,)),
    "task killed when the job exists, and tried again after its end": Case(killed_and_tried_late, (DONE,)),
    "task killed while it waits in the worker": Case(killed_while_waiting, (DONE,)),
    "task killed while it collects the report": Case(killed_while_collecting, (DONE,)),
    "marked failed while deferred": Case(marked_failed, (CANCELLED,), "failed"),
    "marked failed while it waits in the worker": Case(marked_failed_in_worker, (CANCELLED,), "failed"),
    "marked success while deferred": Case(marked_success, (CANCELLED,)),
    "marked failed, `cancel_on_kill` off": Case(kept, (RUNNING,), "failed"),
    "`dagrun_timeout` while deferred": Case(run_timeout, (CANCELLED,), "skipped"),
    "`execution_timeout` while deferred": Case(timeout_deferred, (CANCELLED,), "failed"),
    "marked failed before its trigger started": Case(None, (RUNNING,), "failed"),
    "marked failed while no triggerer runs": Case(None, (RUNNING,), "failed"),
    # A triggerer that comes back sometimes takes up the trigger of the marked task for a second, and cancels.
    "… and cleared after that": Case(None, (DONE,), or_jobs=(CANCELLED, DONE), paid_twice=IN_FLIGHT),
    "triggerer killed, and another one started": Case(None, (DONE,)),
    "scheduler killed and started, task deferred": Case(None, (DONE,)),
    # A new scheduler takes over no task of a LocalExecutor: it ends this try, whose `on_kill` cancels, and starts
    # another.
    "scheduler killed and started, task in the worker": Case(None, (CANCELLED, DONE), paid_twice=IN_FLIGHT),
    "connections to the metadata database cut, task deferred": Case(None, (DONE,)),
    # The same, where the scheduler ended itself.
    "connections to the metadata database cut, task in the worker": Case(
        None, (CANCELLED, DONE), or_jobs=(DONE,), paid_twice=IN_FLIGHT
    ),
}


# Cases that take a part of Airflow down. Each starts its runs, disturbs them, and sees to their end, with a
# `yield` between: the runs of one start while those of another end.


def triggerer_down(cloud: Cloud) -> Iterator[None]:
    taken_over, orphan = cloud.run("deferred", 200), cloud.run("deferred", 240)
    unstarted = cloud.run("deferred", 600)
    submission = unstarted.held_child()
    yield
    for run in (taken_over, orphan):
        run.until_trigger()
    triggerer = tree(cloud.airflow.component("triggerer"))
    for process in triggerer:
        process.suspend()
    submission.resume()
    unstarted.until_state("deferred")
    unstarted.mark("failed")
    unstarted.until_state("failed")
    for process in triggerer:
        process.resume()
    cloud.wait_beats("TriggererJob")
    for process in triggerer:
        process.kill()
    orphan.mark("failed")
    orphan.until_state("failed")
    cloud.left["marked failed while no triggerer runs"] = orphan.left()
    cloud.airflow.start("triggerer")
    cloud.wait_beats("TriggererJob")
    orphan.clear()
    orphan.until_state("deferred")  # in the worker, the next case would end this try as well
    unstarted.until_running()
    cloud.left["marked failed before its trigger started"] = unstarted.left()
    yield
    taken_over.end()
    cloud.left["triggerer killed, and another one started"] = taken_over.left()
    orphan.end()
    cloud.left["… and cleared after that"] = orphan.left()


def scheduler_down(cloud: Cloud) -> Iterator[None]:
    deferred, waiting = cloud.run("deferred", 80), cloud.run("waiting", 140)
    yield
    deferred.until_state("deferred")
    waiting.until_paying()
    cloud.airflow.component("scheduler").kill()
    cloud.airflow.start("scheduler")
    yield
    for run, how in ((deferred, "deferred"), (waiting, "in the worker")):
        run.end()
        cloud.left[f"scheduler killed and started, task {how}"] = run.left()


def database_cut(cloud: Cloud) -> Iterator[None]:
    deferred, waiting = cloud.run("deferred", 80), cloud.run("waiting", 100)
    submissions = [run.held_child() for run in (deferred, waiting)]
    yield
    for submission in submissions:
        submission.resume()
    deferred.until_trigger()
    waiting.until_paying()
    for _ in range(5):
        cloud.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        time.sleep(1)
    for name, kind in (("scheduler", "SchedulerJob"), ("triggerer", "TriggererJob")):
        cloud.revive(name, kind)
    yield
    for run, how in ((deferred, "deferred"), (waiting, "in the worker")):
        run.end()
        cloud.left[f"connections to the metadata database cut, task {how}"] = run.left()


def table(left: dict[str, Left | BaseException]) -> str:
    rows = [
        ("case", "jobs", "at once", "task", "tries", "rows answered", "paid twice", "left running"),
        ("---",) * 8,
    ]
    for case in CASES:
        if isinstance(one := left.get(case), Left):
            answered = f"{'none' if one.answered is None else one.answered} of {one.rows}"
            numbers = (str(one.tries), answered, str(one.paid_twice), str(one.running))
            rows.append((case, ", ".join(one.jobs), str(one.at_once), one.task, *numbers))
        else:
            rows.append((case, *["?"] * 7))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


@pytest.fixture(scope="module")
def cloud(tmp_path_factory, metadata_database):
    with (
        Sandbox(buckets=("rows",), latency=LATENCY, dataflow_start_seconds=1) as sandbox,
        Proxy(sandbox) as proxy,
    ):
        environment = {**proxy.environment(), **metadata_database, "AIRFLOW__CORE__PARALLELISM": "6"}
        database = metadata_database["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].replace("+psycopg", "")
        with local_airflow(tmp_path_factory.mktemp("airflow"), DAGS, environment) as airflow:
            yield Cloud(sandbox, airflow, database)


@pytest.fixture(scope="module")
def left(cloud, pytestconfig):
    """What each case left; an error where a case could not be played."""
    begun = time.monotonic()

    def play(name: str, case: Case) -> None:
        try:
            cloud.left[name] = case.play(cloud).left()
        except Exception as error:  # noqa: BLE001 - shown by the test of this case
            cloud.left[name] = error

    failures: list[Exception] = []

    def go_on(phase: Iterator[None]) -> None:
        try:
            next(phase, None)
        except Exception as error:  # noqa: BLE001 - shown by the tests of its cases
            failures.append(error)

    triggerer, scheduler, database = triggerer_down(cloud), scheduler_down(cloud), database_cut(cloud)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for name, case in CASES.items():
            if case.play is not None:
                pool.submit(play, name, case)
        pool.submit(go_on, triggerer)
    for phase in (scheduler, triggerer, scheduler, database, scheduler, database, database, triggerer):
        go_on(phase)
    for name in CASES:
        cloud.left.setdefault(name, failures[0] if failures else AssertionError("not recorded"))
    with pytestconfig.pluginmanager.get_plugin("capturemanager").global_and_fixture_disabled():
        print(f"\n\n{table(cloud.left)}\n\n{time.monotonic() - begun:.0f} s\n")
    return cloud.left


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("case", CASES)
def test_a_task_has_one_job_and_pays_no_row_twice(left, case):
    found, wanted = left[case], CASES[case]
    if isinstance(found, BaseException):
        raise found
    assert found.jobs in (wanted.jobs, wanted.or_jobs)
    assert found.task == wanted.task
    assert found.at_once == 1
    assert found.running == wanted.jobs.count(RUNNING)
    assert found.paid_twice <= wanted.paid_twice
    assert found.answered == (found.rows if DONE in wanted.jobs else None)


def test_the_page_has_every_case():
    page = PAGE.read_text()
    assert [case for case in CASES if f"| {case} |" not in page] == []
