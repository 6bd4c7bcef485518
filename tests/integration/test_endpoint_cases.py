"""What becomes of a GPU when something happens to the tasks around it, or to Airflow: it never outlives its run.

Every case is a run of its own, with an endpoint of its own. They all share one Airflow and one sandbox, whose bill
tells what was paid for. Those that leave Airflow itself alone play at the same time, those that take a part of it
down after them. Prints a table of what each left.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import httpx
import psutil
import psycopg
import pytest
from local_airflow import local_airflow

from airflow_provider_llmbeam.sandbox import Fault, Proxy, Sandbox, prompt_sha256
from airflow_provider_llmbeam.spec.endpoint.identity import EXPIRES_LABEL, endpoint_id, service_id
from airflow_provider_llmbeam.spec.identity import identity
from airflow_provider_llmbeam.tasks.identity import job_name

DAGS = Path(__file__).parent / "dags"
PAGE = Path(__file__).parents[2] / "docs" / "endpoint-cases.md"
PATIENCE_SECONDS = 150
AT_ONCE = 9
ROWS = 8
PROVISION, WORK, TEARDOWN = "endpoint.provision", "endpoint.work", "endpoint.teardown"
OVER = ("success", "failed")
#: A GPU that boots until a case has done what it is about, and that nobody waits for.
BOOTS = Fault(kind="slow", after_seconds=30.0)
BOOTS_FOR_EVER = Fault(kind="slow", after_seconds=3_600.0)
#: As `SweepEndpointsOperator` in `dags/on_endpoints.py`, and as its Dag has them.
LOCATION = "us-central1"
AHEAD_SECONDS = 595.0


@dataclass(frozen=True, kw_only=True)
class Left:
    """What a case left behind.

    Attributes:
        run: State of the run.
        tasks: States of `provision`, `work` and `teardown`; with the number of tries where there were more.
        at_once: Most replicas that were billed at any time.
        removed_by: Who ended the bill; "-" where there was none.
        after_work_seconds: Of the bill, after the end of whatever used the GPU last.
        after_run_seconds: Of the bill, after the end of the run.
        there: Endpoints, models and services of this run that are still there.
    """

    run: str
    tasks: tuple[str, str, str]
    at_once: int
    removed_by: str
    after_work_seconds: float
    after_run_seconds: float
    there: tuple[str, ...]


class Run:
    """One run of a Dag of `dags/on_endpoints.py`."""

    _numbers = count(1)

    def __init__(self, cloud: Cloud, dag_id: str, *faults: tuple[str, Fault]) -> None:
        self.cloud, self.dag_id = cloud, dag_id
        self.case = f"case-{next(self._numbers)}"
        self.words = cloud.folder / self.case
        self.words.mkdir()
        self.texts = [f"{self.case} {number}" for number in range(ROWS)]
        cloud.upload(
            f"{self.case}/in.jsonl", [{"id": number, "text": text} for number, text in enumerate(self.texts)]
        )
        self.run_id = cloud.airflow.trigger(dag_id, {"case": self.case, "words": str(self.words)})
        reserve = SimpleNamespace(dag_id=dag_id, task_id="endpoint.reserve", run_id=self.run_id, map_index=-1)
        self.key = identity(job_name(reserve))
        self.ids = {endpoint_id(self.key), service_id(self.key)}
        for method, fault in faults:
            self.meet(method, fault)

    @property
    def charges(self) -> list:
        bill = self.cloud.sandbox.bill
        return [one for one in (*bill.lines, *bill.running) if one.name.rpartition("/")[2] in self.ids]

    @property
    def running(self) -> list:
        return [one for one in self.charges if one.until is None]

    @property
    def there(self) -> tuple[str, ...]:
        sandbox = self.cloud.sandbox
        names = [one["name"].partition("@")[0] for one in (*sandbox.endpoints, *sandbox.models, *sandbox.services)]
        return tuple(name for name in names if name.rpartition("/")[2] in self.ids)

    @property
    def tasks(self) -> dict[str, dict]:
        return self.cloud.airflow.tasks(self.dag_id, self.run_id)

    @property
    def state(self) -> str:
        return self.cloud.airflow.run_state(self.dag_id, self.run_id)

    def log(self, task_id: str) -> str:
        tries = range(1, self.tasks[task_id]["try_number"] + 1)
        lines = [self.cloud.airflow.log_lines(self.dag_id, self.run_id, task_id, number) for number in tries]
        return "\n".join(line for one in lines for line in one)

    def meet(self, method: str, fault: Fault, times: int = 1) -> None:
        """A fault for this endpoint alone."""
        self.cloud.sandbox.faults.when(method, self.key, fault, times=times)

    def until(self, condition: Callable[[], object], what: str, pause_seconds: float = 0.5):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (value := condition()):
            if time.monotonic() > deadline:
                states = {task_id: task["state"] for task_id, task in self.tasks.items()}
                words = f"never: {what}; the tasks are {states}, of the endpoint there is {self.there}"
                raise AssertionError(f"{words}\n{self.log(PROVISION)[-2000:]}\n{self.log(TEARDOWN)[-1000:]}")
            time.sleep(pause_seconds)
        return value

    def until_state(self, task_id: str, *states: str) -> None:
        self.until(lambda: self.tasks[task_id]["state"] in states, f"{task_id} is {states}")

    def until_billed(self) -> None:
        self.until(lambda: self.running, "a GPU bills", pause_seconds=0.05)

    def until_working(self) -> psutil.Process:
        """Until the work runs; returns its process."""
        self.until_state(WORK, "running")
        return self.process(WORK)

    def until_trigger(self) -> None:
        """Until the GPU boots, and the trigger has looked at it; the task itself has looked before it deferred."""
        self.until_billed()
        self.until_state(PROVISION, "deferred")
        now = time.time()
        self.until(lambda: self._looks(now), "the trigger looks")

    def process(self, task_id: str) -> psutil.Process:
        title = f"airflow worker -- {self.tasks[task_id]['id']}"
        return self.until(lambda: next(titled(title), None), f"{task_id} has a process", pause_seconds=0.02)

    def mark(self, task_id: str, state: str) -> None:
        self.cloud.airflow.set_task_state(self.dag_id, self.run_id, task_id, state)

    def mark_run(self, state: str) -> None:
        self.cloud.airflow.set_run_state(self.dag_id, self.run_id, state)

    def clear(self, task_id: str) -> None:
        tries = self.tasks[task_id]["try_number"]
        self.cloud.airflow.clear(self.dag_id, self.run_id, task_id)
        self.until(lambda: self.tasks[task_id]["try_number"] > tries, f"{task_id} is tried again")

    def say(self, word: str) -> None:
        """How the work ends: `succeed` or `fail`."""
        (self.words / word).touch()

    def expire(self) -> None:
        """Until the sweeper of this test takes it to be due."""
        labels = self.running[0].labels
        due = int(labels[EXPIRES_LABEL]) - AHEAD_SECONDS
        self.until(lambda: time.time() > due, "it has expired")

    def end(self) -> Run:
        """Until the run is over."""
        self.until(lambda: self.state in OVER, "the run is over")
        return self

    def left(self) -> Left:
        charges, tasks = self.charges, self.tasks
        moments = [(one.since, 1) for one in charges] + [(one.until, -1) for one in charges if one.until]
        billed, most = 0, 0
        for _, step in sorted(moments):
            billed += step
            most = max(most, billed)
        run = self.cloud.airflow.run(self.dag_id, self.run_id)
        ends = [seconds(tasks[task_id]["end_date"]) for task_id in (PROVISION, WORK)]
        return Left(
            run=run["state"],
            tasks=tuple(shown(tasks[task_id]) for task_id in (PROVISION, WORK, TEARDOWN)),
            at_once=most,
            removed_by=self._removed_by(tasks[TEARDOWN]),
            after_work_seconds=self._billed(max(filter(None, ends), default=0.0)),
            after_run_seconds=self._billed(seconds(run["end_date"]) or 0.0),
            there=self.there,
        )

    def _billed(self, after: float) -> float:
        return sum(one.gpu_minutes(after) for one in self.charges) * 60

    def _removed_by(self, teardown: dict) -> str:
        charges = self.charges
        if not charges or self.running:
            return "nobody" if charges else "-"
        if self.ids & self.cloud.swept:
            return "sweeper"
        begun = seconds(teardown["start_date"])
        return "teardown" if begun is not None and max(one.until for one in charges) > begun else "provision"

    def _looks(self, after: float) -> bool:
        return any(
            record.received_at > after and record.method.endswith(".get")
            for record in self.cloud.sandbox.requests
            if any(own in record.resource for own in self.ids)
        )


@dataclass
class Cloud:
    """The sandbox, Airflow, and what the cases left."""

    sandbox: Sandbox
    airflow: object
    environment: dict[str, str]
    database: str
    folder: Path
    swept: set[str] = field(default_factory=set)
    left: dict[str, Left | BaseException] = field(default_factory=dict)

    def run(self, dag_id: str, *faults: tuple[str, Fault]) -> Run:
        return Run(self, dag_id, *faults)

    def upload(self, name: str, rows: list[dict]) -> None:
        url, text = (
            f"{self.sandbox.url}/upload/storage/v1/b/rows/o",
            "".join(f"{json.dumps(row)}\n" for row in rows),
        )
        httpx.post(url, params={"uploadType": "media", "name": name}, content=text).raise_for_status()

    def execute(self, statement: str, *values: object) -> list[tuple]:
        with psycopg.connect(self.database, autocommit=True) as connection:
            cursor = connection.execute(statement, values)
            return cursor.fetchall() if cursor.description else []

    def wait_beats(self, kind: str, beats: int = 2) -> None:
        """Until a component has had time for whatever there is to do."""
        for _ in range(beats):
            before, deadline = self._beat(kind), time.monotonic() + PATIENCE_SECONDS
            while self._beat(kind) == before:
                assert time.monotonic() < deadline, f"no {kind} is alive"
                time.sleep(0.2)

    def sweep_by_dag(self) -> None:
        """As every hour."""
        run_id = self.airflow.trigger("sweep")
        assert self.airflow.wait("sweep", run_id, PATIENCE_SECONDS) == "success"
        self._note(self.airflow.xcom("sweep", run_id, "sweep"))

    def sweep_by_cron(self) -> None:
        """As without Airflow."""
        command = [sys.executable, "-m", "airflow_provider_llmbeam.sweep", "--location", LOCATION]
        options = [f"--older-than-seconds={-AHEAD_SECONDS}"]
        ended = subprocess.run(
            [*command, *options], env=self.environment, capture_output=True, text=True, check=True
        )
        self._note(json.loads(ended.stdout))

    def kill(self, name: str) -> None:
        """Kills a component with all that it started."""
        for process in tree(self.airflow.component(name)):
            process.kill()

    def _beat(self, kind: str) -> datetime:
        ((at,),) = self.execute("SELECT max(latest_heartbeat) FROM job WHERE job_type = %s", kind)
        return at

    def _note(self, manifest: dict) -> None:
        self.swept |= {name.rpartition("/")[2] for name in manifest["deleted"]}


def seconds(date: str | None) -> float | None:
    """Of the epoch."""
    return None if date is None else datetime.fromisoformat(date).timestamp()


def shown(task: dict) -> str:
    return f"{task['state']}{f' ({tries})' if (tries := task['try_number']) > 1 else ''}"


def titled(title: str):
    for process in psutil.process_iter(["cmdline"]):
        if process.info["cmdline"] and process.info["cmdline"][0] == title:
            yield process


def tree(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


# Cases that leave Airflow alone: each gets the cloud and returns its run.


def all_is_well(dag_id: str) -> Callable[[Cloud], Run]:
    def play(cloud: Cloud) -> Run:
        run = cloud.run(dag_id)
        run.until_working()
        run.say("succeed")
        return run.end()

    return play


def rows_are_asked(cloud: Cloud) -> Run:
    run = cloud.run("garden_asked").end()
    paid = cloud.sandbox.requests.paid("vertex.chatCompletions")
    assert [paid[prompt_sha256(f"Say {text}")] for text in run.texts] == [1] * ROWS
    return run


def work_fails(dag_id: str) -> Callable[[Cloud], Run]:
    def play(cloud: Cloud) -> Run:
        run = cloud.run(dag_id)
        run.until_working()
        run.say("fail")
        return run.end()

    return play


def work_killed(cloud: Cloud) -> Run:
    run = cloud.run("garden")
    run.until_working().kill()
    return run.end()


def work_killed_with_its_supervisor(cloud: Cloud) -> Run:
    run = cloud.run("garden")
    process = run.until_working()
    supervisor = process.parent()
    for one in (supervisor, process):
        one.kill()
    return run.end()


def work_cleared(cloud: Cloud) -> Run:
    run = cloud.run("garden")
    run.until_working()
    run.clear(WORK)
    run.until_working()
    run.say("succeed")
    return run.end()


def work_marked(state: str) -> Callable[[Cloud], Run]:
    def play(cloud: Cloud) -> Run:
        run = cloud.run("garden")
        run.until_working()
        run.mark(WORK, state)
        return run.end()

    return play


def run_marked(state: str) -> Callable[[Cloud], Run]:
    def play(cloud: Cloud) -> Run:
        run = cloud.run("garden")
        run.until_working()
        run.mark_run(state)
        return run.end()

    return play


def marked_while_it_boots(cloud: Cloud) -> Run:
    run = cloud.run("garden", ("vertex.modelGarden.deploy", BOOTS))
    run.until_trigger()
    run.mark(PROVISION, "failed")
    return run.end()


def run_marked_while_it_boots(cloud: Cloud) -> Run:
    run = cloud.run("garden", ("vertex.modelGarden.deploy", BOOTS))
    run.until_trigger()
    run.mark_run("failed")
    return run.end()


def timeout_while_it_boots(cloud: Cloud) -> Run:
    run = cloud.run("garden_timeout", ("vertex.modelGarden.deploy", BOOTS_FOR_EVER))
    run.until_trigger()
    timeout = "UPDATE task_instance SET trigger_timeout = now() WHERE run_id = %s AND task_id = %s"
    cloud.execute(timeout, run.run_id, PROVISION)
    return run.end()


def nothing_free_in_one_place(cloud: Cloud) -> Run:
    run = cloud.run(
        "garden_in_two_places", ("vertex.modelGarden.deploy", Fault(kind="stock-out", after_seconds=5.0))
    )
    run.until_working()
    run.say("succeed")
    return run.end()


def deployment_fails(dag_id: str, method: str) -> Callable[[Cloud], Run]:
    def play(cloud: Cloud) -> Run:
        why = Fault(
            kind="operation-error", http_status=500, message="The server never came up.", after_seconds=5.0
        )
        run = cloud.run(dag_id, (method, why)).end()
        assert "The server never came up." in run.log(PROVISION)
        return run

    return play


def killed_between(cloud: Cloud) -> Run:
    run = cloud.run("container")
    run.until_state(PROVISION, "running")
    process = run.process(PROVISION)
    run.until(lambda: run.there, "the endpoint is made", pause_seconds=0.02)
    process.kill()
    return run.end()


def killed_while_it_boots(dag_id: str) -> Callable[[Cloud], Run]:
    def play(cloud: Cloud) -> Run:
        run = cloud.run(dag_id, ("vertex.endpoints.deployModel", BOOTS))
        run.until_billed()
        run.process(PROVISION).kill()
        if dag_id == "container_retried":
            run.until_working()
            run.say("succeed")
        return run.end()

    return play


def provision_cleared(dag_id: str, method: str) -> Callable[[Cloud], Run]:
    def play(cloud: Cloud) -> Run:
        run = cloud.run(dag_id, (method, BOOTS))
        run.until_billed() if dag_id == "container" else run.until_trigger()
        run.clear(PROVISION)
        run.until_working()
        run.say("succeed")
        return run.end()

    return play


def teardown_refused(cloud: Cloud) -> Run:
    run = cloud.run("garden")
    run.until_working()
    run.meet("vertex.endpoints.get", Fault(kind="error", http_status=403), times=2)
    run.meet("vertex.endpoints.undeployModel", Fault(kind="error", http_status=409))
    run.say("succeed")
    return run.end()


def paused(cloud: Cloud) -> Run:
    run = cloud.run("garden_expiring")
    run.until_working()
    cloud.airflow.pause("garden_expiring")
    try:
        run.say("succeed")
        run.until_state(WORK, "success")
        run.expire()
        cloud.wait_beats("SchedulerJob")
        assert run.running
        cloud.sweep_by_dag()
        assert not run.running
        assert run.tasks[TEARDOWN]["state"] is None
    finally:
        cloud.airflow.pause("garden_expiring", is_paused=False)
    return run.end()


# Cases that take a part of Airflow down, one after the other.


def two_that_work(cloud: Cloud) -> tuple[Run, Run]:
    """For the last of them."""
    runs = cloud.run("garden"), cloud.run("garden_expiring")
    for run in runs:
        run.until_working()
    return runs


def triggerer_down(cloud: Cloud) -> None:
    taken_over, marked = (cloud.run("garden", ("vertex.modelGarden.deploy", BOOTS)) for _ in range(2))
    for run in (taken_over, marked):
        run.until_trigger()
    cloud.kill("triggerer")
    marked.mark(PROVISION, "failed")
    cloud.left["no triggerer runs while the GPU boots, `provision` marked failed"] = marked.end().left()
    cloud.airflow.start("triggerer")
    taken_over.until_working()
    taken_over.say("succeed")
    cloud.left["triggerer killed while the GPU boots, and another one started"] = taken_over.end().left()


def scheduler_down(cloud: Cloud, working: Run, expiring: Run) -> None:
    cloud.airflow.component("scheduler").kill()
    expiring.say("succeed")
    expiring.until_state(WORK, "success")
    expiring.expire()
    assert expiring.running
    cloud.sweep_by_cron()
    assert not expiring.running
    assert working.running
    cloud.airflow.start("scheduler")
    # It takes over no task of a LocalExecutor: it ends this try, and starts another.
    working.until(lambda: working.tasks[WORK]["try_number"] > 1, "the work is tried again")
    working.say("succeed")
    cloud.left["scheduler killed while the work runs, and another one started"] = working.end().left()
    cloud.left["scheduler down until the endpoint has expired"] = expiring.end().left()


@dataclass(frozen=True)
class Case:
    """A case, and what it must leave.

    Attributes:
        play: Plays it; none where it is played with others.
        tasks: States of `provision`, `work` and `teardown`.
        run: State of the run.
        removed_by: Who may have ended the bill.
    """

    play: Callable[[Cloud], Run] | None
    tasks: tuple[str, str, str] = ("success", "success", "success")
    run: str = "success"
    removed_by: tuple[str, ...] = ("teardown",)


ENDED = ("success", "failed", "success")
NEVER_UP = ("failed", "upstream_failed", "success")

#: In the order in which they begin: long ones first. Those without a function are recorded by `*_down`.
CASES = {
    "Dag paused until the endpoint has expired": Case(paused, removed_by=("sweeper",)),
    "`provision` cleared while the GPU boots, deferred": Case(
        provision_cleared("garden", "vertex.modelGarden.deploy"), ("success (2)", "success", "success")
    ),
    "`provision` cleared while the GPU boots, in the worker": Case(
        provision_cleared("container", "vertex.endpoints.deployModel"), ("success (2)", "success", "success")
    ),
    "`provision` killed while the GPU boots, and tried again": Case(
        killed_while_it_boots("container_retried"), ("success (2)", "success", "success")
    ),
    "`provision` killed while the GPU boots, not tried again": Case(
        killed_while_it_boots("container"), NEVER_UP, "failed"
    ),
    "`provision` killed between endpoint and GPU": Case(killed_between, NEVER_UP, "failed", ("-",)),
    "`execution_timeout` while the GPU boots": Case(
        timeout_while_it_boots, NEVER_UP, "failed", ("provision", "teardown")
    ),
    "`provision` marked failed while the GPU boots": Case(
        marked_while_it_boots, NEVER_UP, "failed", ("provision", "teardown")
    ),
    "run marked failed while the GPU boots": Case(
        run_marked_while_it_boots, ("failed", "skipped", "success"), removed_by=("provision", "teardown")
    ),
    "no GPU is free in the first location": Case(nothing_free_in_one_place),
    "work killed with its supervisor": Case(work_killed_with_its_supervisor, ENDED, "failed"),
    "deployment fails half-way": Case(
        deployment_fails("garden", "vertex.modelGarden.deploy"), NEVER_UP, "failed", ("provision",)
    ),
    "deployment fails half-way, Cloud Run": Case(
        deployment_fails("cloud_run", "run.services.create"), NEVER_UP, "failed", ("-", "provision")
    ),
    "teardown refused twice": Case(teardown_refused, ("success", "success", "success (3)")),
    "work cleared": Case(work_cleared, ("success (2)", "success (2)", "success")),
    "rows are asked": Case(rows_are_asked),
    "all is well": Case(all_is_well("garden")),
    "all is well, Cloud Run": Case(all_is_well("cloud_run")),
    "work fails": Case(work_fails("garden"), ENDED, "failed"),
    "work fails, Cloud Run": Case(work_fails("cloud_run"), ENDED, "failed"),
    "work killed": Case(work_killed, ENDED, "failed"),
    "work marked failed": Case(work_marked("failed"), ENDED, "failed"),
    "work marked success": Case(work_marked("success")),
    "run marked failed": Case(run_marked("failed"), ENDED),
    "run marked success": Case(run_marked("success")),
    "no triggerer runs while the GPU boots, `provision` marked failed": Case(None, NEVER_UP, "failed"),
    "triggerer killed while the GPU boots, and another one started": Case(None),
    "scheduler killed while the work runs, and another one started": Case(
        None, ("success", "success (2)", "success")
    ),
    "scheduler down until the endpoint has expired": Case(None, removed_by=("sweeper",)),
}


def table(left: dict[str, Left | BaseException]) -> str:
    head = ("case", "run", "`provision`", "work", "`teardown`", "at once", "ended by", "after the work, s")
    rows = [(*head, "after the run, s", "left"), ("---",) * 10]
    for case in CASES:
        if isinstance(one := left.get(case), Left):
            numbers = (f"{one.after_work_seconds:.0f}", f"{one.after_run_seconds:.0f}")
            there = ", ".join(name.split("/")[-2] for name in one.there) or "nothing"
            rows.append((case, one.run, *one.tasks, str(one.at_once), one.removed_by, *numbers, there))
        else:
            rows.append((case, *["?"] * 9))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


@pytest.fixture(scope="module")
def cloud(tmp_path_factory, metadata_database):
    with (
        Sandbox(buckets=("rows",), endpoint_seconds=1, endpoint_warm_seconds=1) as sandbox,
        Proxy(sandbox) as proxy,
    ):
        environment = {**proxy.environment(), **metadata_database, "AIRFLOW__CORE__PARALLELISM": "12"}
        database = metadata_database["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].replace("+psycopg", "")
        folder = tmp_path_factory.mktemp("words")
        with local_airflow(tmp_path_factory.mktemp("airflow"), DAGS, environment) as airflow:
            yield Cloud(sandbox, airflow, {**os.environ, **environment}, database, folder)
        sandbox.faults.assert_all_consumed()


@pytest.fixture(scope="module")
def left(cloud, pytestconfig):
    """What each case left; an error where a case could not be played."""
    begun = time.monotonic()

    def play(name: str, case: Case) -> None:
        try:
            cloud.left[name] = case.play(cloud).left()
        except Exception as error:  # noqa: BLE001 - shown by the test of this case
            cloud.left[name] = error

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for name, case in CASES.items():
            if case.play is not None:
                pool.submit(play, name, case)
        working = pool.submit(two_that_work, cloud)
    failures: list[Exception] = []
    for phase in (triggerer_down, lambda cloud: scheduler_down(cloud, *working.result())):
        try:
            phase(cloud)
        except Exception as error:  # noqa: BLE001 - shown by the tests of its cases
            failures.append(error)
    for name in CASES:
        cloud.left.setdefault(name, failures[0] if failures else AssertionError("not recorded"))
    with pytestconfig.pluginmanager.get_plugin("capturemanager").global_and_fixture_disabled():
        print(f"\n\n{table(cloud.left)}\n\n{time.monotonic() - begun:.0f} s\n")
    return cloud.left


@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", CASES)
def test_no_gpu_outlives_its_run(left, case):
    found, wanted = left[case], CASES[case]
    if isinstance(found, BaseException):
        raise found
    assert found.after_run_seconds == 0
    assert found.there == ()
    assert found.at_once <= 1
    assert found.removed_by in wanted.removed_by
    assert found.tasks == wanted.tasks
    assert found.run == wanted.run


def test_the_page_has_every_case():
    page = PAGE.read_text()
    assert [case for case in CASES if f"| {case} |" not in page] == []
