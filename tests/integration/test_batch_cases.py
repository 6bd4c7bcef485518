"""What becomes of batch inference when something is killed: one job per file, no row lost, none paid for twice.

Every case is a run of its own that is stopped at one moment, by a hold of the sandbox. What is killed is killed
once for all runs that have reached their moments. Prints a table of what each run left.

The suite kills all of Airflow at the moments that differ most. `LLMBEAM_KILLED=task,triggerer,scheduler,Airflow`
has each of them killed at each moment, for docs/reference/batch-cases.md; in one process
`tests/pipeline/test_batch_inference.py` ends a try at each.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from llmbeam_sandbox import prompt_sha256
from llmbeam_sandbox.batch_inference.settings import BatchSettings
from llmbeam_sandbox.core.hold import Hold
from waiting import scaled

from airflow_provider_llmbeam.pipeline.batch_inference.run import PILOT_ROWS
from tests.integration import cases
from tests.integration.cases import COMPONENTS, Cloud, kill_all, show_table, tree
from tests.unit.pipeline.batch_inference.moments import KILLS as MOMENTS_OF_THE_PAGE

pytestmark = [
    pytest.mark.full,
    pytest.mark.promise(1),
    pytest.mark.promise(2),
    pytest.mark.xdist_group("airflow-jobs"),
    pytest.mark.timeout(scaled(900)),
]
TASK = "ask"
ROWS = 60
ONLINE, BATCH = "gemini.generateContent", "batch.vertexRow"
CREATE, LIST, CANCEL, DELETE = (
    f"vertex.batchPredictionJobs.{each}" for each in ("create", "list", "cancel", "delete")
)
INSERT, GET = "storage.objects.insert", "storage.objects.get"
#: Share of the rows that the provider fails, so that some rows are left to send online.
FAIL_RATIO = 0.1
#: Time that a job takes, in seconds: less than the first wait of the task.
RUN_SECONDS = 5.0
#: Longest wait for a job that gets stuck, in seconds: above the time until its submission.
MAX_WAIT_SECONDS, DAY_SECONDS = 30, 86_400


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A moment at which a run is stopped.

    Attributes:
        method: Method of the sandbox whose call is held; `None` to wait until the task is deferred.
        contains: Part of the text of that call; "{batch}" is the directory of the files of batch inference.
        after: Number of such calls that pass.
        group: Runs of a group start when those before are stopped: first those whose client waits, or repeats the
            call, for longer than a minute, and last a task that is deferred for ten seconds.
        location: Location of the model; a hold of a call that does not name its run needs one of its own.
        gets_stuck: Whether the job ends only when it is cancelled, after `MAX_WAIT_SECONDS`.
    """

    method: str | None
    contains: str = ""
    after: int = 0
    group: int = 1
    location: str = "global"
    gets_stuck: bool = False


#: The manifest is written with the intent, after a submission, after the wait, and after the harvest.
MOMENTS = {
    "request files are written": Moment(method=INSERT, contains="{batch}requests-"),
    "the intent is written": Moment(method=INSERT, contains="{batch}manifest.json"),
    "the job is submitted": Moment(method=CREATE, contains="{batch}results/", group=2),
    "the job exists, and is not recorded": Moment(method=INSERT, contains="{batch}manifest.json", after=1),
    "the task is deferred": Moment(method=None, group=3),
    "the job is polled": Moment(method=LIST, contains="europe-west4", after=1, group=2, location="europe-west4"),
    "the job is cancelled": Moment(
        method=CANCEL, contains="us-east4", group=2, location="us-east4", gets_stuck=True
    ),
    "results are read": Moment(method=GET, contains="{batch}results/"),
    "answers are in the journal, and not counted": Moment(method=INSERT, contains="{batch}sums-"),
    "the harvest is recorded": Moment(method=INSERT, contains="{batch}manifest.json", after=3),
    "the rest is sent online": Moment(method=ONLINE, contains="{case} ", after=PILOT_ROWS),
    "the job is deleted": Moment(method=DELETE, contains="us-west1", group=2, location="us-west1"),
}

#: A submission that is not recorded, no process at all, answers that are paid for and not read, a later moment.
IN_THE_SUITE = (
    "the job exists, and is not recorded",
    "the task is deferred",
    "results are read",
    "the rest is sent online",
)


@dataclass(frozen=True, kw_only=True)
class Left:
    """What a case left behind.

    Attributes:
        run: State of the run.
        tries: Number of tries of its task.
        batch: Rows that batch inference answered and billed.
        online: Rows that were answered and billed online.
        paid_twice: Answers that were billed again.
        answered: Rows of the answer files.
        files: Files of batch inference that are still there.
    """

    run: str
    tries: int
    batch: int
    online: int
    paid_twice: int
    answered: int
    files: int


class Run(cases.Run):
    """One run that is held at a moment.

    Args:
        cloud: Where it runs.
        moment: The moment.
    """

    def __init__(self, cloud: Cloud, moment: Moment) -> None:
        self._moment = moment
        super().__init__(cloud, "half_price", ROWS)

    def conf(self) -> dict[str, Any]:
        moment, hold, self.hold = self._moment, self.cloud.sandbox.faults.hold, None
        if moment.gets_stuck:
            self.submission = hold(CREATE, f"{self.case}/")
        if moment.method is not None:
            places = {"case": self.case, "batch": f"{self.case}/out/.llmbeam/{self.case}/batch/"}
            self.hold: Hold | None = hold(moment.method, moment.contains.format(**places), moment.after)
        return {
            **super().conf(),
            "location": moment.location,
            "max_batch_wait_seconds": str(MAX_WAIT_SECONDS if moment.gets_stuck else DAY_SECONDS),
        }

    def until_moment(self) -> None:
        """Waits until the run is stopped."""
        if self._moment.gets_stuck:
            self._submit_stuck()
        if (hold := self.hold) is None:
            self.until_task(TASK, "deferred")
        else:
            self.until(lambda: hold.waiting, f"a call of {self._moment} is held")

    def _submit_stuck(self) -> None:
        requests, batches = self.cloud.sandbox.requests, self.cloud.sandbox.batches
        self.until(lambda: self.submission.waiting, "the submission is held")
        before = sum(each.method == CREATE for each in requests)
        batches.settings, usual = BatchSettings(outcome="stuck_at", run_seconds=RUN_SECONDS), batches.settings
        self.submission.release()
        self.until(lambda: sum(each.method == CREATE for each in requests) > before, "the job is submitted")
        batches.settings = usual

    def kill_task(self) -> None:
        """Kills the task with its supervisor and its job; a deferred one, which has no process, is cleared."""
        if self.hold is None:
            self.cloud.airflow.clear(self.dag_id, self.run_id, TASK)
            return
        kill_all(tree(self.process_of(TASK)))

    def release(self) -> None:
        """Lets the held call pass."""
        if self.hold is not None:
            self.hold.release()

    def end(self) -> Run:
        """Waits until the run is over."""
        self.until(lambda: self.state in ("success", "failed"), "the run is over")
        return self

    def left(self) -> Left:
        requests = self.cloud.sandbox.requests
        prompts = [prompt_sha256(f"Say {text}") for text in self.texts]
        batch, online = ([requests.paid(method)[prompt] for prompt in prompts] for method in (BATCH, ONLINE))
        names = self.cloud.objects(f"{self.case}/out/")
        answers = [name for name in names if name.startswith(f"{self.case}/out/answers-")]
        return Left(
            run=self.state,
            tries=self.task_fields(TASK)["try_number"],
            batch=sum(batch),
            online=sum(online),
            paid_twice=sum(max(0, sum(times) - 1) for times in zip(batch, online, strict=True)),
            answered=sum((self.cloud.download(name) or "").count("\n") for name in answers),
            files=sum("/batch/" in name for name in names),
        )


def stop_triggerer(cloud: Cloud, runs: list[Run]) -> None:
    cloud.kill("triggerer", "TriggererJob")


def stop_scheduler(cloud: Cloud, runs: list[Run]) -> None:
    cloud.kill_scheduler()


def stop_tasks(cloud: Cloud, runs: list[Run]) -> None:
    for run in runs:
        run.kill_task()


def stop_airflow(cloud: Cloud, runs: list[Run]) -> None:
    cloud.airflow.kill()
    for kind in ("SchedulerJob", "TriggererJob", "DagProcessorJob"):
        cloud.forget_heartbeats(kind)
    for run in runs:
        cloud.forget_task_heartbeats(run.run_id)


def start(cloud: Cloud, killed: str) -> None:
    """Starts again what was killed."""
    if killed == "Airflow":
        cloud.airflow.start_again()
    for name, kind in COMPONENTS.items():
        if name == killed:
            cloud.airflow.start(name)
            cloud.wait_heartbeats(kind)


Kill = Callable[[Cloud, list[Run]], None]
ALL_KILLS: dict[str, Kill] = {
    "Airflow": stop_airflow,
    "task": stop_tasks,
    "triggerer": stop_triggerer,
    "scheduler": stop_scheduler,
}
CHOSEN = os.environ.get("LLMBEAM_KILLED")
KILLS = {name: ALL_KILLS[name] for name in (CHOSEN or "Airflow").split(",")}
PLAYED = {name: moment for name, moment in MOMENTS.items() if CHOSEN or name in IN_THE_SUITE}

CASES = [(killed, moment) for killed in KILLS for moment in PLAYED]


def play(cloud: Cloud, killed: str) -> None:
    """Plays all moments of one kind of kill, and records what each left or why it could not be played."""
    cloud.sandbox.batches.settings = BatchSettings(run_seconds=RUN_SECONDS, fail_ratio=FAIL_RATIO)
    runs: dict[str, Run] = {}

    def each(step: Callable[[str], None], moments: Iterable[str]) -> None:
        for moment in moments:
            if (killed, moment) not in cloud.left:
                try:
                    step(moment)
                except Exception as error:  # noqa: BLE001 - shown by the test of this case
                    cloud.left[killed, moment] = error

    def begin(moment: str) -> None:
        runs[moment] = Run(cloud, MOMENTS[moment])

    def end(moment: str) -> None:
        cloud.left[killed, moment] = runs[moment].end().left()

    for group in sorted({moment.group for moment in PLAYED.values()}):
        moments = [name for name, moment in PLAYED.items() if moment.group == group]
        each(begin, moments)
        each(lambda name: runs[name].until_moment(), sorted(moments, key=lambda name: MOMENTS[name].gets_stuck))
    KILLS[killed](cloud, [*runs.values()])
    start(cloud, killed)
    for run in runs.values():
        run.release()
    each(end, PLAYED)


def table(left: dict[Any, Left | BaseException]) -> Iterator[tuple[str, ...]]:
    yield ("killed", "while", "run", "tries", "batch rows", "online rows", "paid twice", "rows answered")
    yield ("---",) * 8
    for case in CASES:
        if isinstance(one := left.get(case), Left):
            numbers = map(str, (one.tries, one.batch, one.online, one.paid_twice))
            yield (*case, one.run, *numbers, f"{one.answered} of {ROWS}")
        else:
            yield (*case, *["?"] * 6)


@pytest.fixture(scope="module")
def left(cloud, pytestconfig):
    """What each case left; an error where a case could not be played."""
    begun = time.monotonic()
    for killed in KILLS:
        play(cloud, killed)
    cloud.left["jobs"] = sum(each.method == CREATE and each.http_status == 200 for each in cloud.sandbox.requests)
    show_table(pytestconfig, "What is killed during batch inference", table(cloud.left), time.monotonic() - begun)
    return cloud.left


@pytest.mark.parametrize(("killed", "moment"), CASES)
def test_no_row_is_lost_or_paid_for_twice_whatever_is_killed_during_batch_inference(left, killed, moment):
    found = left[killed, moment]
    if isinstance(found, BaseException):
        raise found
    assert found.run == "success"
    assert found.answered == ROWS
    assert found.paid_twice == 0
    assert found.batch + found.online == ROWS
    assert found.files == 0


def test_there_is_one_job_for_each_request_file(left):
    assert left["jobs"] == len(CASES)


def test_the_moments_are_those_of_the_page():
    assert MOMENTS.keys() == MOMENTS_OF_THE_PAGE.keys()
