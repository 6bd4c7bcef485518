"""What Airflow does with a task on Dataflow that is killed, marked, cleared or timed out: it has one job.

No row is paid for twice.

Every case is a run of its own. They all share one Airflow and one sandbox, play at the same time where they leave
Airflow itself alone, and one after the other where they take a part of it down. What each must leave is in
`tests/unit/jobs/moments.py`, with all moments of a job.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from llmbeam_sandbox import Fault, prompt_sha256
from packaging.version import Version
from waiting import scaled

from airflow_provider_llmbeam.hooks.deployment import own_deployment
from airflow_provider_llmbeam.operators.identity import job_name
from airflow_provider_llmbeam.spec.fields.names import DEPLOYMENT_LABEL
from airflow_provider_llmbeam.spec.identity import JOB_LABEL, SPEC_LABEL, identity
from tests.integration import cases
from tests.integration.cases import Cloud, play_all
from tests.processes import job_processes
from tests.unit.jobs.moments import CASES

pytestmark = [
    pytest.mark.full,
    pytest.mark.promise(1),
    pytest.mark.promise(2),
    pytest.mark.xdist_group("airflow-services"),
    pytest.mark.timeout(scaled(900)),
]
TASK = "ask"
MODEL = "gemini.generateContent"
ROWS = 24
#: Rows that are answered before the model is held: two batches, and one row of the third.
ANSWERED = 9
#: Answers that a cancelled job may take with it: one batch of four in each of a worker's four threads. An object
#: store shows a segment of the journal when it is closed, at the end of its batch.
IN_FLIGHT = 16
AT_ONCE = 8
#: Another Airflow with the same Dags in the same project.
OTHER = "another"
ACTIVE = {f"JOB_STATE_{name}" for name in ("QUEUED", "PENDING", "RUNNING", "CANCELLING")}
#: From Airflow 3.3 on a task has a state store. Below, a finished job is run again, and its journal pays.
HAS_STATE_STORE = Version(version("apache-airflow-core")) >= Version("3.3")
COLLECTING = "killed with -9 while it collects the report"


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
        other_deployment: States that the job of the same task in another deployment has had.
    """

    jobs: tuple[str, ...]
    at_once: int
    task: str
    tries: int
    rows: int
    answered: int | None
    paid_twice: int
    running: int
    other_deployment: tuple[str, ...]


class Run(cases.Run):
    """One run of a Dag of `dags/on_dataflow.py`: a task, and the jobs it has on Dataflow.

    Args:
        cloud: Where it runs.
        dag_id: Dag of the run.
        answered: Rows that the model answers before it holds the others until `release`; None holds none.
    """

    def __init__(self, cloud: Cloud, dag_id: str, answered: int | None = None) -> None:
        self._answered = answered
        super().__init__(cloud, dag_id, ROWS)
        task = SimpleNamespace(dag_id=dag_id, task_id=TASK, run_id=self.run_id, map_index=-1)
        self.name = job_name(task)
        self.other_job = self._other_job()

    def conf(self) -> dict[str, str]:
        if self._answered is not None:
            self.hold = self.cloud.sandbox.faults.hold(MODEL, f"{self.case} ", after=self._answered)
        return super().conf()

    def _other_job(self) -> str:
        """Starts the job that another Airflow with the same Dags, and a job of the same name, would start."""
        own = identity(self.name, OTHER)
        labels = {JOB_LABEL: own, SPEC_LABEL: "00000000", DEPLOYMENT_LABEL: OTHER}
        fields = {"name": f"{own}-00000000", "labels": labels, "type": "JOB_TYPE_BATCH"}
        return self.cloud.sandbox.dataflow.add_running("llmbeam-sandbox", "europe-west1", fields)

    @property
    def jobs(self) -> list[dict]:
        """Found as a person or a sweeper finds them, by the label; the oldest first."""
        label = identity(self.name, own_deployment())
        return [job for job in self.cloud.sandbox.dataflow.jobs[::-1] if job["labels"].get(JOB_LABEL) == label]

    @property
    def active(self) -> list[dict]:
        return [job for job in self.jobs if job["currentState"] in ACTIVE]

    @property
    def task(self) -> dict[str, Any]:
        return self.task_fields(TASK)

    def paid(self) -> int:
        prompts = self.cloud.sandbox.requests.paid(MODEL)
        return sum(prompts[prompt_sha256(f"Say {text}")] for text in self.texts)

    def describe(self) -> str:
        return f"{super().describe()}\nIts jobs are {[job['currentState'] for job in self.jobs]}."

    def release(self) -> None:
        """Lets the model answer the other rows."""
        self.hold.release()

    def until_state(self, *states: str) -> None:
        self.until_task(TASK, *states)

    def until_says(self, words: str) -> None:
        self.until_logged(TASK, words)

    def until_paying(self) -> None:
        """Until the job has answered some rows and waits for the others, and the task waits for the job."""
        self.until(
            lambda: self.paid() >= ANSWERED and self.hold.waiting, "some rows are answered, others are held"
        )
        assert self.active
        self.until_says("is in state")

    def until_running(self) -> None:
        self.until(lambda: any(job["currentState"] == "JOB_STATE_RUNNING" for job in self.jobs), "the job runs")

    def until_trigger(self) -> None:
        """Until the job runs, and the trigger has looked at it; the task itself has looked before it deferred."""
        self.until_running()
        self.until(lambda: self.log(TASK).count("is in state JOB_STATE") >= 2, "the trigger looks")

    def until_trigger_says(self, words: str) -> None:
        """Until the trigger has logged something at its end.

        Airflow closes the log of a trigger at its end, and writes what it reads later to the log of the triggerer
        (Airflow 3.3.2, jobs/triggerer_job_runner.py): with many triggers at a time, that can be these words.
        """
        triggerer = self.cloud.airflow.log_path
        names = [self.run_id, *(job["id"] for job in self.jobs)]

        def is_said() -> bool:
            lines = [line for line in triggerer.read_text(errors="replace").splitlines() if words in line]
            return words in self.log(TASK) or any(name in line for line in lines for name in names)

        self.until(is_said, f"the trigger says {words!r}")

    def until_jobs(self, number: int) -> None:
        self.until(lambda: len(self.jobs) >= number, f"{number} jobs")

    def has_attached(self) -> bool:
        """Whether the second try waits for a job."""
        task = self.task_fields(TASK)
        return task["try_number"] == 2 and task["state"] == "deferred"

    def process(self) -> psutil.Process:
        """The process of the task, once it runs."""
        return self.process_of(TASK)

    def child(self) -> psutil.Process:
        """The process that submits the job, once it runs."""
        process = self.process()
        (child,) = self.until(lambda: job_processes(process), "a child submits", pause_seconds=0.1)
        return child

    def mark(self, state: str) -> None:
        self.mark_task(TASK, state)

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
        prompts = self.cloud.sandbox.requests.paid(MODEL)
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
            other_deployment=tuple(self.cloud.sandbox.dataflow.states(self.other_job)),
        )


# What happens to a task, while Airflow goes on: each gets the cloud and returns its run.


def killed_before_it_is_told(cloud: Cloud) -> Run:
    run = Run(cloud, "deferred", answered=0)
    process = run.child().parent()
    run.until(lambda: run.jobs, "Dataflow has the job", pause_seconds=0.01)
    process.kill()
    run.until_says("Attaching to job")
    run.release()
    run.end()
    return run


def killed_while_collecting(cloud: Cloud) -> Run:
    run = Run(cloud, "deferred")
    report = f"{run.case}/out/report.json"
    run.until(lambda: [job for job in run.jobs if job["currentState"] == "JOB_STATE_DONE"], "it is done", 0.05)
    hangs = Fault(kind="hang")
    cloud.sandbox.faults.when("storage.objects.get", report, hangs, times=1)
    run.until(
        lambda: any(one.http_status is None and report in one.resource for one in cloud.sandbox.requests),
        "the task reads the report",
    )
    run.process().kill()
    run.end()
    assert ("is done: collecting its report" in run.log(TASK)) == HAS_STATE_STORE
    return run


def marked_failed_in_worker(cloud: Cloud) -> Run:
    run = Run(cloud, "waiting", answered=ANSWERED)
    run.until_paying()
    run.mark("failed")
    run.end("failed")
    run.until_says("The task was killed. Dataflow job")
    return run


def timeout_in_worker(cloud: Cloud) -> Run:
    run = Run(cloud, "waiting_timeout", answered=ANSWERED)
    run.until_paying()
    # Airflow measures this one by a timer of the task's process: its signal comes now instead of in an hour.
    run.process().send_signal(signal.SIGALRM)
    run.end("failed")
    run.until_says("was cancelled")
    return run


def marked_failed(cloud: Cloud) -> Run:
    run = Run(cloud, "deferred", answered=0)
    run.until_trigger()
    run.mark("failed")
    run.end("failed")
    run.until_trigger_says("was cancelled. The answers so far are kept")
    return run


def cleared(cloud: Cloud) -> Run:
    run = Run(cloud, "deferred", answered=ANSWERED)
    run.until_paying()
    run.until_trigger()
    run.clear()
    run.until(lambda: len(run.jobs) == 2 or run.has_attached(), "the next try has a job")
    run.release()
    run.end()
    return run


def run_timeout(cloud: Cloud) -> Run:
    run = Run(cloud, "deferred_run_timeout", answered=0)
    run.until_trigger()
    cloud.execute("UPDATE dag_run SET start_date = start_date - interval '2 hours' WHERE run_id = %s", run.run_id)
    run.end("skipped")
    return run


def timeout_deferred(cloud: Cloud) -> Run:
    run = Run(cloud, "deferred_timeout", answered=0)
    run.until_trigger()
    cloud.execute("UPDATE task_instance SET trigger_timeout = now() WHERE run_id = %s", run.run_id)
    run.end("failed")
    run.until_says("Waiting for the job ended with TaskDeferralTimeout.")
    return run


def taken_over(cloud: Cloud) -> Run:
    run = Run(cloud, "deferred", answered=0)
    run.until_trigger()
    # Another triggerer has it until its last heartbeat is 30 s old, then the real one takes it back.
    another = (
        "WITH another AS (INSERT INTO job (job_type, state, hostname, start_date, latest_heartbeat)"
        " VALUES ('TriggererJob', 'running', 'another', now(), now() - interval '10 seconds') RETURNING id)"
        " UPDATE trigger SET triggerer_id = (SELECT id FROM another)"
        " WHERE id = (SELECT trigger_id FROM task_instance WHERE run_id = %s)"
    )
    cloud.execute(another, run.run_id)
    run.until_trigger_says("trigger completed")
    run.release()
    run.end()
    return run


#: In the order in which they begin: long ones first. The others are recorded by `triggerer_down` and the like.
PLAYED = {
    "trigger taken over by another triggerer": taken_over,
    "`execution_timeout` while it waits in the worker": timeout_in_worker,
    "cleared while deferred": cleared,
    "killed with -9 before it recorded the job's id": killed_before_it_is_told,
    COLLECTING: killed_while_collecting,
    "marked failed while it waits in the worker": marked_failed_in_worker,
    "marked failed while deferred": marked_failed,
    "`dagrun_timeout` while deferred": run_timeout,
    "`execution_timeout` while deferred": timeout_deferred,
}


# What takes a part of Airflow down. Each starts its runs, disturbs them, and sees to their end, with a `yield`
# between: the runs of one start while those of another end.


def triggerer_down(cloud: Cloud) -> Iterator[None]:
    taken_over, orphan = (Run(cloud, "deferred", answered=0) for _ in range(2))
    yield
    for run in (taken_over, orphan):
        run.until_trigger()
    cloud.kill("triggerer", "TriggererJob")
    orphan.mark("failed")
    orphan.until_state("failed")
    cloud.left["marked failed while no triggerer runs"] = orphan.left()
    cloud.airflow.start("triggerer")
    cloud.wait_heartbeats("TriggererJob")
    orphan.clear()
    orphan.until_state("deferred")  # in the worker, the next case would end this try as well
    for run in (taken_over, orphan):
        run.release()
    yield
    taken_over.end()
    cloud.left["triggerer killed, and another one started"] = taken_over.left()
    orphan.end()
    cloud.left["marked failed while no triggerer runs, then cleared"] = orphan.left()


def scheduler_down(cloud: Cloud) -> Iterator[None]:
    deferred, waiting = (Run(cloud, dag_id, answered=ANSWERED) for dag_id in ("deferred", "waiting"))
    yield
    deferred.until_state("deferred")
    for run in (deferred, waiting):
        run.until_paying()
    cloud.kill_scheduler()
    cloud.airflow.start("scheduler")
    waiting.until_jobs(2)
    for run in (deferred, waiting):
        run.release()
    yield
    for run, where in ((deferred, "deferred"), (waiting, "in the worker")):
        run.end()
        cloud.left[f"scheduler killed and started, task {where}"] = run.left()


@pytest.fixture(scope="module")
def left(cloud):
    """What each case left; an error where a case could not be played."""
    failures: list[Exception] = []

    def go_on(phase: Iterator[None]) -> None:
        try:
            next(phase, None)
        except Exception as error:  # noqa: BLE001 - shown by the tests of its cases
            failures.append(error)

    triggerer, scheduler = triggerer_down(cloud), scheduler_down(cloud)
    play_all(cloud, PLAYED, AT_ONCE, lambda: go_on(triggerer))
    for phase in (scheduler, triggerer, scheduler, triggerer, scheduler):
        go_on(phase)
    for name in CASES:
        cloud.left.setdefault(name, failures[0] if failures else AssertionError("not recorded"))
    return cloud.left


@pytest.mark.parametrize("case", CASES)
def test_a_task_has_one_job_and_pays_no_row_twice(left, case):
    found, wanted = left[case], CASES[case]
    if isinstance(found, BaseException):
        raise found
    if case == COLLECTING and not HAS_STATE_STORE:
        assert found.jobs == ("DONE", "DONE")
    else:
        assert found.jobs in (wanted.jobs, wanted.or_jobs)
    assert found.task == wanted.task
    assert found.at_once == 1
    assert found.other_deployment == ("JOB_STATE_RUNNING",)
    assert found.running == found.jobs.count("RUNNING")
    assert found.paid_twice <= (IN_FLIGHT if wanted.is_paid_again else 0)
    assert found.answered == (found.rows if "DONE" in found.jobs else None)
