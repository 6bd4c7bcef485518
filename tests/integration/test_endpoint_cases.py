"""Which tasks Airflow runs, skips and tries again around a GPU, so that it never outlives its run.

Every case is a run of its own, with an endpoint of its own. They all share one Airflow and one sandbox, whose bill
tells what was paid for. Those that leave Airflow itself alone play at the same time, those that take a part of it
down after them. What provisioning and teardown do at each moment: `tests/unit/endpoints/test_moments.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import httpx
import psutil
import pytest
from llmbeam_sandbox import Fault
from waiting import scaled, until

from airflow_provider_llmbeam.endpoints.teardown import MAX_REFUSED
from airflow_provider_llmbeam.hooks.deployment import own_deployment
from airflow_provider_llmbeam.operators.identity import job_name
from airflow_provider_llmbeam.spec.endpoint.identity import (
    EXPIRES_LABEL,
    display_name,
    endpoint_id,
    endpoint_labels,
    service_id,
)
from airflow_provider_llmbeam.spec.identity import identity
from tests.integration import cases
from tests.integration.cases import STEP_SECONDS, Cloud, kill_all, play_all
from tests.unit.endpoints.moments import RUNS

pytestmark = [
    pytest.mark.full,
    pytest.mark.promise(3),
    pytest.mark.xdist_group("airflow-services"),
    pytest.mark.timeout(scaled(900)),
]
AT_ONCE = 11
PAUSED = "Dag paused until the endpoint has expired"
PROVISION, WORK, TEARDOWN = "endpoint.provision", "endpoint.work", "endpoint.teardown"
OVER = ("success", "failed")
GARDEN_DEPLOY, DEPLOY = "vertex.modelGarden.deploy", "vertex.endpoints.deployModel"
#: As `SweepEndpointsOperator` in `dags/on_endpoints.py`, and as its Dag has them.
LOCATION = "us-central1"
#: Another Airflow with the same Dags in the same project.
OTHER = "another"
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
        other_deployment: Whether the endpoint and the service of the same run in another deployment are still as
            they were.
        log: Lines of all tries of `teardown`.
    """

    run: str
    tasks: tuple[str, str, str]
    at_once: int
    removed_by: str
    after_work_seconds: float
    after_run_seconds: float
    there: tuple[str, ...]
    other_deployment: bool
    log: str = field(repr=False)


class Run(cases.Run):
    """One run of a Dag of `dags/on_endpoints.py`.

    Args:
        cloud: Where it runs.
        dag_id: Dag of the run.
        *faults: Methods of this endpoint alone, and the fault of each.
        boots: Method whose operation lasts until `boot`, so that the GPU boots meanwhile.
    """

    def __init__(self, cloud: Cloud, dag_id: str, *faults: tuple[str, Fault], boots: str | None = None) -> None:
        super().__init__(cloud, dag_id)
        reserve = SimpleNamespace(dag_id=dag_id, task_id="endpoint.reserve", run_id=self.run_id, map_index=-1)
        self.key = identity(job_name(reserve), own_deployment())
        self.ids = {endpoint_id(self.key), service_id(self.key)}
        # At once, as the run has begun.
        if boots is not None:
            self.hold = cloud.sandbox.faults.hold(boots, self.key)
        for method, fault in faults:
            self.meet(method, fault)
        self.others = self._plant_others(job_name(reserve))

    def _plant_others(self, name: str) -> dict[str, dict[str, Any]]:
        """Creates what another Airflow would create for a run of the same name; it has expired."""
        key = identity(name, OTHER)
        run = {"dag_id": self.dag_id, "run_id": self.run_id, "attempt": "1"}
        labels = endpoint_labels(key, deployment=OTHER, expires_at=1_000.0, **run)
        place = f"projects/llmbeam-sandbox/locations/{LOCATION}"
        endpoint = {"displayName": display_name(labels), "labels": labels}
        service = {"labels": labels, "template": {"containers": [{"image": "vllm"}]}}
        self._create("aiplatform", f"v1/{place}/endpoints", {"endpointId": endpoint_id(key)}, endpoint)
        self._create("run", f"v2/{place}/services", {"serviceId": service_id(key)}, service)
        self.other_ids = {endpoint_id(key), service_id(key)}
        until(lambda: len(self._others()) == 2, "the endpoint and the service of another deployment")
        until(lambda: not any(one.get("reconciling") for one in self._others().values()), "the service is up")
        return self._others()

    def _create(self, api: str, path: str, own: dict[str, str], fields: dict[str, Any]) -> None:
        host = f"{LOCATION}-{api}.googleapis.com" if api == "aiplatform" else f"{api}.googleapis.com"
        headers = {"Host": host, "Authorization": f"Bearer {self.cloud.sandbox.token}"}
        url = f"{self.cloud.sandbox.url}/{path}"
        httpx.post(url, params=own, json=fields, headers=headers).raise_for_status()

    def _others(self) -> dict[str, dict[str, Any]]:
        there = (*self.cloud.sandbox.endpoints, *self.cloud.sandbox.services)
        return {one["name"]: one for one in there if one["name"].rpartition("/")[2] in self.other_ids}

    def conf(self) -> dict[str, str]:
        self.words = self.cloud.folder / self.case
        self.words.mkdir()
        return {**super().conf(), "words": str(self.words)}

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

    def describe(self) -> str:
        return f"{super().describe()}\nOf the endpoint there is {self.there}."

    def meet(self, method: str, fault: Fault, times: int = 1) -> None:
        """A fault for this endpoint alone."""
        self.cloud.sandbox.faults.when(method, self.key, fault, times=times)

    def boot(self) -> None:
        """Lets the GPU come up."""
        self.hold.release()

    def until_billed(self) -> None:
        self.until(lambda: self.running, "a GPU bills", pause_seconds=0.05)

    def until_working(self) -> psutil.Process:
        """Until the work runs; returns its process."""
        return self.process_of(WORK)

    def until_trigger(self) -> None:
        """Until the GPU boots, and the trigger has looked at it; the task itself has looked before it deferred."""
        self.until_billed()
        self.until_task(PROVISION, "deferred")
        now = time.time()
        self.until(lambda: self._looks(now), "the trigger looks")

    def mark_run(self, state: str) -> None:
        self.cloud.airflow.set_run_state(self.dag_id, self.run_id, state)

    def clear(self, task_id: str) -> None:
        tries = self.task_fields(task_id)["try_number"]
        self.cloud.airflow.clear(self.dag_id, self.run_id, task_id)
        self.until(lambda: self.task_fields(task_id)["try_number"] > tries, f"{task_id} is tried again")

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
        charges, tasks = self.charges, self.tasks_fields()
        moments = [(one.since, 1) for one in charges] + [(one.until, -1) for one in charges if one.until]
        billed, most = 0, 0
        for _, step in sorted(moments):
            billed += step
            most = max(most, billed)
        run = self.cloud.airflow.run(self.dag_id, self.run_id)
        ends = [tasks[task_id]["end_date"] for task_id in (PROVISION, WORK)]
        return Left(
            run=run["state"],
            tasks=tuple(shown(tasks[task_id]) for task_id in (PROVISION, WORK, TEARDOWN)),
            at_once=most,
            removed_by=self._removed_by(),
            after_work_seconds=self._billed(max((end.timestamp() for end in ends if end), default=0.0)),
            after_run_seconds=self._billed(datetime.fromisoformat(run["end_date"]).timestamp()),
            there=self.there,
            other_deployment=self._others() == self.others,
            log=self.log(TEARDOWN),
        )

    def _billed(self, after: float) -> float:
        return sum(one.gpu_minutes(after) for one in self.charges) * 60

    def _removed_by(self) -> str:
        charges = self.charges
        if not charges or self.running:
            return "nobody" if charges else "-"
        if self.ids & self.cloud.sweepers.swept:
            return "sweeper"
        begun = self._first_start(TEARDOWN)
        ended = max(one.until for one in charges)
        return "teardown" if begun is not None and ended > begun else "provision"

    def _first_start(self, task_id: str) -> float | None:
        """Start of the first try, as a later one may find nothing left to remove."""
        ((begun,),) = self.cloud.execute(
            "SELECT min(start_date) FROM (SELECT dag_id, run_id, task_id, start_date FROM task_instance"
            " UNION ALL SELECT dag_id, run_id, task_id, start_date FROM task_instance_history) AS tries"
            " WHERE dag_id = %s AND run_id = %s AND task_id = %s",
            self.dag_id,
            self.run_id,
            task_id,
        )
        return begun and begun.timestamp()

    def _looks(self, after: float) -> bool:
        return any(
            record.received_at > after and record.method.endswith(".get")
            for record in self.cloud.sandbox.requests
            if any(own in record.resource for own in self.ids)
        )


@dataclass
class Sweepers:
    """Both sweepers, and whose endpoints they have removed."""

    cloud: Cloud
    environment: dict[str, str]
    swept: set[str] = field(default_factory=set)

    def by_dag(self) -> None:
        """As every hour."""
        airflow = self.cloud.airflow
        run_id = airflow.trigger("sweep")
        assert airflow.wait("sweep", run_id, STEP_SECONDS) == "success"
        self._note(airflow.xcom("sweep", run_id, "sweep"))

    def by_cron(self) -> None:
        """As without Airflow."""
        command = [sys.executable, "-m", "airflow_provider_llmbeam", "sweep", "--location", LOCATION]
        options = [f"--older-than-seconds={-AHEAD_SECONDS}"]
        ended = subprocess.run(
            [*command, *options], env=self.environment, capture_output=True, text=True, check=True
        )
        self._note(json.loads(ended.stdout))

    def _note(self, manifest: dict[str, Any]) -> None:
        self.swept |= {name.rpartition("/")[2] for name in manifest["deleted"]}


def shown(task: dict[str, Any]) -> str:
    return f"{task['state']}{f' ({tries})' if (tries := task['try_number']) > 1 else ''}"


# Cases that leave Airflow alone: each gets the cloud and returns its run.


def work_killed_with_its_supervisor(cloud: Cloud) -> Run:
    run = Run(cloud, "cloud_run")
    process = run.until_working()
    kill_all([process.parent(), process])

    def is_over() -> bool:
        # Again, as a last heartbeat may have been on its way; of this task alone, as the teardown may run by now.
        cloud.forget_task_heartbeats(run.run_id, WORK)
        return run.task_fields(WORK)["state"] != "running"

    until(is_over, "the end of the work", STEP_SECONDS, 1.0)
    return run.end()


def work_cleared(cloud: Cloud) -> Run:
    run = Run(cloud, "garden")
    run.until_working()
    run.clear(WORK)
    run.until_working()
    run.say("succeed")
    return run.end()


def run_marked_while_it_boots(cloud: Cloud) -> Run:
    run = Run(cloud, "garden", boots=GARDEN_DEPLOY)
    run.until_trigger()
    run.mark_run("failed")
    return run.end()


def timeout_while_it_boots(cloud: Cloud) -> Run:
    run = Run(cloud, "garden_timeout", boots=GARDEN_DEPLOY)
    run.until_trigger()
    timeout = "UPDATE task_instance SET trigger_timeout = now() WHERE run_id = %s AND task_id = %s"
    cloud.execute(timeout, run.run_id, PROVISION)
    return run.end()


def killed_while_it_boots(dag_id: str) -> Callable[[Cloud], Run]:
    def play(cloud: Cloud) -> Run:
        run = Run(cloud, dag_id, boots=DEPLOY)
        run.until_billed()
        run.process_of(PROVISION).kill()
        if dag_id == "container_retried":
            run.until(lambda: run.task_fields(PROVISION)["try_number"] > 1, "provision is tried again")
            run.boot()
            run.until_working()
            run.say("succeed")
        return run.end()

    return play


def provision_cleared(cloud: Cloud) -> Run:
    run = Run(cloud, "garden", boots=GARDEN_DEPLOY)
    run.until_trigger()
    run.clear(PROVISION)
    run.boot()
    run.until_working()
    run.say("succeed")
    return run.end()


def teardown_refused(cloud: Cloud) -> Run:
    run = Run(cloud, "garden")
    run.until_working()
    run.meet("vertex.endpoints.get", Fault(kind="error", http_status=403), times=MAX_REFUSED + 1)
    run.say("succeed")
    return run.end()


def paused(cloud: Cloud) -> Run:
    run = Run(cloud, "garden_expiring")
    run.until_working()
    cloud.airflow.pause("garden_expiring")
    try:
        run.say("succeed")
        run.until_task(WORK, "success")
        run.expire()
        cloud.wait_heartbeats("SchedulerJob")
        assert run.running
        cloud.sweepers.by_dag()
        assert not run.running
        assert run.task_fields(TEARDOWN)["state"] in (None, "scheduled"), "a paused Dag queues nothing"
    finally:
        cloud.airflow.pause("garden_expiring", is_paused=False)
    return run.end()


# Cases that take a part of Airflow down, one after the other.


def two_that_work(cloud: Cloud) -> tuple[Run, Run]:
    """For the last of them; after the sweep of `paused`, which would remove the second one."""
    until(lambda: PAUSED in cloud.left, "the case with a sweep has ended", STEP_SECONDS)
    runs = Run(cloud, "garden"), Run(cloud, "garden_expiring")
    for run in runs:
        run.until_working()
    return runs


def two_that_boot(cloud: Cloud) -> tuple[Run, Run]:
    """For the first of them."""
    return Run(cloud, "garden", boots=GARDEN_DEPLOY), Run(cloud, "garden", boots=GARDEN_DEPLOY)


def triggerer_down(cloud: Cloud, booting: tuple[Run, Run]) -> None:
    taken_over, marked = booting
    for run in booting:
        run.until_trigger()
    cloud.kill("triggerer", "TriggererJob")
    marked.mark_task(PROVISION, "failed")
    cloud.left["no triggerer runs while the GPU boots, `provision` marked failed"] = marked.end().left()
    cloud.airflow.start("triggerer")
    taken_over.boot()
    taken_over.until_working()
    taken_over.say("succeed")
    cloud.left["triggerer killed while the GPU boots, and another one started"] = taken_over.end().left()


def scheduler_down(cloud: Cloud, running: tuple[Run, Run]) -> None:
    working, expiring = running
    cloud.kill_scheduler()
    expiring.say("succeed")
    expiring.until_task(WORK, "success")
    expiring.expire()
    assert expiring.running
    cloud.sweepers.by_cron()
    assert not expiring.running
    assert working.running
    cloud.airflow.start("scheduler")
    # It takes over no task of a LocalExecutor: it ends this try, and starts another.
    working.until(lambda: working.task_fields(WORK)["try_number"] > 1, "the work is tried again")
    working.say("succeed")
    cloud.left["scheduler killed while the work runs, and another one started"] = working.end().left()
    cloud.left["scheduler down until the endpoint has expired"] = expiring.end().left()


#: In the order in which they begin: long ones first. Those that are missing are recorded by `*_down`.
PLAYS = {
    PAUSED: paused,
    "teardown refused": teardown_refused,
    "`provision` cleared while the GPU boots": provision_cleared,
    "`provision` killed while the GPU boots, and tried again": killed_while_it_boots("container_retried"),
    "`provision` killed while the GPU boots, not tried again": killed_while_it_boots("container"),
    "`execution_timeout` while the GPU boots": timeout_while_it_boots,
    "run marked failed while the GPU boots": run_marked_while_it_boots,
    "work killed with its supervisor": work_killed_with_its_supervisor,
    "work cleared": work_cleared,
}


@pytest.fixture(scope="module")
def left(cloud, shared_proxy, tmp_path_factory):
    """What each case left; an error where a case could not be played."""
    cloud.folder = tmp_path_factory.mktemp("words")
    cloud.sweepers = Sweepers(cloud, {**os.environ, **shared_proxy.environment()})
    begun_runs: dict[Callable[[Cloud], tuple[Run, Run]], tuple[Run, Run]] = {}
    failures: list[Exception] = []

    def start(runs: Callable[[Cloud], tuple[Run, Run]]) -> None:
        try:
            begun_runs[runs] = runs(cloud)
        except Exception as error:  # noqa: BLE001 - shown by the tests of its cases
            failures.append(error)

    play_all(cloud, PLAYS, AT_ONCE, lambda: start(two_that_boot), lambda: start(two_that_work))
    for phase, runs in ((triggerer_down, two_that_boot), (scheduler_down, two_that_work)):
        try:
            phase(cloud, begun_runs[runs])
        except Exception as error:  # noqa: BLE001 - shown by the tests of its cases
            failures.append(error)
    for name in RUNS:
        cloud.left.setdefault(name, failures[0] if failures else AssertionError("not recorded"))
    return cloud.left


@pytest.mark.parametrize("case", RUNS)
def test_no_gpu_outlives_its_run(left, case):
    found, wanted = left[case], RUNS[case]
    if isinstance(found, BaseException):
        raise found
    assert found.after_run_seconds == 0
    assert found.there == ()
    assert found.other_deployment
    assert found.at_once <= 1
    assert found.removed_by in wanted.removed_by
    assert found.tasks == wanted.tasks, found.log
    assert found.run == wanted.run
