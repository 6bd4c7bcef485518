"""Sensors that wait for room on a real Airflow: without a worker slot, through the end of a triggerer, to the job.

All runs share one Airflow and one sandbox, and begin together.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import httpx
import psycopg
import pytest
from local_airflow import LocalAirflow, local_airflow

from airflow_provider_llmbeam.sandbox import Proxy, Sandbox

DAGS = Path(__file__).parent / "dags"
GATE = "gate"
PATIENCE_SECONDS = 120
DEADLINE_SECONDS = 75.0
#: Of the last look and the start of the task that skips itself, where two cores have much to do.
SLACK_SECONDS = 20.0
ROWS = 4
EXHAUSTED = "gemini-2.5-pro in 'global' is exhausted: Of 1,000 requests until"
NOTHING_LEFT = "No job was started and nothing of it was billed."
NAMES = ("gated", "impatient", "patient", "cleared", "survivor", "deadline")


@dataclass(frozen=True)
class Run:
    """A run of a Dag of `dags/on_quota.py`."""

    airflow: LocalAirflow
    dag_id: str
    run_id: str

    @property
    def gate(self) -> dict:
        return self.airflow.task(self.dag_id, self.run_id, GATE)

    @property
    def states(self) -> dict[str, str]:
        return {name: task["state"] for name, task in self.airflow.tasks(self.dag_id, self.run_id).items()}

    def log(self, try_number: int = 1) -> str:
        return "\n".join(self.airflow.log_lines(self.dag_id, self.run_id, GATE, try_number))

    def looks(self, try_number: int = 1) -> int:
        return self.log(try_number).count("is exhausted")

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"never: {what}; {self.dag_id} is {self.states}\n{self.log()[-3000:]}")
            time.sleep(0.3)

    def until_waiting(self, looks: int = 2) -> None:
        """Until it is deferred, and the trigger has looked; the task itself has looked before it deferred."""
        self.until(lambda: self.gate["state"] == "deferred" and self.looks() >= looks, "the trigger looks")

    def end(self) -> str:
        return self.airflow.wait(self.dag_id, self.run_id, PATIENCE_SECONDS)


@dataclass(frozen=True)
class Cloud:
    """The sandbox, Airflow and its metadata database."""

    sandbox: Sandbox
    airflow: LocalAirflow
    database: str

    def run(self, dag_id: str) -> Run:
        return Run(self.airflow, dag_id, self.airflow.trigger(dag_id))

    def recover(self, model: str) -> None:
        """Of all that was asked lately 5% are rejected, where it was 90%."""
        self.sandbox.monitoring.add_traffic(model, minutes=30, requests_per_minute=1710)

    def triggers(self) -> int:
        """How many there are that nobody is waiting for."""
        unused = "SELECT count(*) FROM trigger WHERE id NOT IN (SELECT trigger_id FROM task_instance"
        with psycopg.connect(self.database) as connection:
            ((found,),) = connection.execute(f"{unused} WHERE trigger_id IS NOT NULL)")
        return found


@pytest.fixture(scope="module")
def cloud(tmp_path_factory, metadata_database):
    with Sandbox(buckets=("rows",)) as sandbox, Proxy(sandbox) as proxy:
        for name in ("flash", "pro", "flash-lite"):
            traffic = {"requests_per_minute": 10, "rejected_per_minute": 90}
            sandbox.monitoring.add_traffic(f"gemini-2.5-{name}", minutes=30, **traffic)
        rows = "".join(json.dumps({"id": number, "text": f"row {number}"}) + "\n" for number in range(ROWS))
        url = f"{sandbox.url}/upload/storage/v1/b/rows/o"
        httpx.post(url, params={"uploadType": "media", "name": "in.jsonl"}, content=rows).raise_for_status()
        environment = {**proxy.environment(), **metadata_database}
        database = metadata_database["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].replace("+psycopg", "")
        with local_airflow(tmp_path_factory.mktemp("airflow"), DAGS, environment) as airflow:
            with psycopg.connect(database, autocommit=True) as connection:
                connection.execute(
                    "INSERT INTO slot_pool (pool, slots, include_deferred) VALUES ('one_slot', 1, false)"
                )
            yield Cloud(sandbox, airflow, database)


@pytest.fixture(scope="module")
def runs(cloud):
    """One run of each, which all wait."""
    begun = {name: cloud.run("patient" if name == "cleared" else name) for name in reversed(NAMES)}
    for name in ("gated", "patient", "cleared", "survivor", "deadline"):
        begun[name].until_waiting()
    return begun


def test_a_task_runs_in_the_only_slot_while_a_sensor_waits_that_started_in_it(cloud, runs):
    neighbour = cloud.run("neighbour")
    assert neighbour.end() == "success"
    assert runs["gated"].gate["state"] == "deferred"
    assert runs["gated"].gate["pool"] == "one_slot"


def test_a_sensor_that_nobody_waits_for_any_longer_ends_its_trigger(cloud, runs):
    marked, cleared = runs["patient"], runs["cleared"]
    cloud.airflow.set_task_state("patient", marked.run_id, GATE, "failed")
    cloud.airflow.clear("patient", cleared.run_id, GATE)
    cleared.until(lambda: cleared.gate["try_number"] == 2 and cleared.looks(2) >= 2, "the second try waits")
    assert cleared.gate["state"] == "deferred"
    marked.until(lambda: cloud.triggers() == 0, "no trigger is left over")
    looks = marked.looks(), cleared.looks(1)
    time.sleep(6)  # three times `poke_interval`
    assert (marked.looks(), cleared.looks(1)) == looks
    assert marked.end() == "failed"


def test_a_sensor_goes_on_in_another_triggerer_with_the_patience_that_is_left(cloud, runs):
    triggerer = cloud.airflow.component("triggerer")
    for process in (triggerer, *triggerer.children(recursive=True)):
        process.kill()
    survivor, deadline = runs["survivor"], runs["deadline"]
    seen = survivor.looks()
    cloud.airflow.start("triggerer")
    survivor.until(lambda: survivor.looks() > seen, "the other triggerer looks")
    taken_over = time.time()
    cloud.recover("gemini-2.5-flash-lite")
    assert survivor.end() == "success"
    before_the_end = time.time() - _seconds(survivor.gate["start_date"])
    waited = cloud.airflow.xcom("survivor", survivor.run_id, GATE)["waited_seconds"]
    assert before_the_end - SLACK_SECONDS < waited < before_the_end
    assert deadline.end() == "success"
    assert deadline.states == {GATE: "skipped"}
    assert _seconds(deadline.gate["end_date"]) - taken_over < DEADLINE_SECONDS, "it was not begun anew"
    assert f"within {DEADLINE_SECONDS:g} s (`timeout`). {EXHAUSTED}" in deadline.log()


def test_a_sensor_that_times_out_skips_says_what_was_missing_and_lets_its_alternative_run(runs):
    run = runs["impatient"]
    assert run.end() == "success"
    assert run.states == {GATE: "skipped", "ask": "skipped", "instead": "success"}
    (told,) = (line for line in run.log().splitlines() if "Skipped because `soft_fail=True`" in line)
    assert "within 8 s (`timeout`)" in told
    assert EXHAUSTED in told
    assert told.endswith(NOTHING_LEFT)


def test_a_job_takes_model_and_limits_of_the_sensor_that_let_it_start(cloud, runs):
    run = runs["gated"]
    cloud.recover("gemini-2.5-flash")
    assert run.end() == "success"
    assert run.states == {GATE: "success", "ask": "success"}
    found = cloud.airflow.xcom("gated", run.run_id, GATE)
    assert found["verdict"] == "degraded"
    assert found["limits"]["max_in_flight"] == 2
    assert 1000 < found["limits"]["requests_per_minute"] <= 1720  # the busiest minute: 1,710 and the last 10
    rendered = cloud.airflow.task("gated", run.run_id, "ask")["rendered_fields"]
    assert rendered["limits"] == found["limits"]
    assert rendered["model"] == found["model"] | {"location": "global"}
    assert cloud.sandbox.stats()["methods"]["gemini.generateContent"]["by_http_status"] == {"200": ROWS}


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp()
