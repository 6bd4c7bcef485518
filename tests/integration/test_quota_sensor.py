"""Sensors that wait for headroom on a real Airflow: without a worker slot, across triggerers, up to their job.

All runs share one Airflow and one sandbox, and begin together.
"""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from waiting import scaled

from tests.integration import cases
from tests.integration.cases import STEP_SECONDS, Cloud

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("airflow-services"), pytest.mark.timeout(scaled(600))]
GATE = "gate"
DEADLINE_SECONDS = 75.0
ROWS = 4
EXHAUSTED = "gemini-2.5-pro in 'global' is exhausted: Of 1,000 requests until"
NOTHING_LEFT = "No job was started and nothing of it was billed."
NAMES = ("gated", "impatient", "patient", "cleared", "survivor", "deadline")


class Run(cases.Run):
    """A run of a Dag of `dags/on_quota.py`."""

    @property
    def gate(self) -> dict[str, Any]:
        return self.task_fields(GATE)

    @property
    def states(self) -> dict[str, str]:
        return {name: task["state"] for name, task in self.tasks_fields().items()}

    def polls(self, try_number: int | None = 1) -> int:
        return self.log(GATE, try_number).count("is exhausted")

    def until_waiting(self, polls: int = 2) -> None:
        """Waits until the task is deferred and there were `polls` polls, the first of them by the task itself."""
        self.until(lambda: self.gate["state"] == "deferred" and self.polls() >= polls, "the trigger polls")

    def end(self) -> str:
        return self.cloud.airflow.wait(self.dag_id, self.run_id, STEP_SECONDS)


def recover(cloud: Cloud, model: str) -> None:
    """Adds accepted traffic, which lowers the rejected ratio of recent requests from 90 % to 5 %."""
    cloud.sandbox.monitoring.add_traffic(model, minutes=30, requests_per_minute=1710)


def triggers(cloud: Cloud) -> int:
    """Returns the number of triggers without a task instance that waits for them."""
    unused = "SELECT count(*) FROM trigger WHERE id NOT IN (SELECT trigger_id FROM task_instance"
    ((found,),) = cloud.execute(f"{unused} WHERE trigger_id IS NOT NULL)")
    return found


@pytest.fixture(scope="module")
def runs(cloud):
    """One run of each Dag, all of which wait."""
    for name in ("flash", "pro", "flash-lite"):
        traffic = {"requests_per_minute": 10, "rejected_per_minute": 90}
        cloud.sandbox.monitoring.add_traffic(f"gemini-2.5-{name}", minutes=30, **traffic)
    cloud.upload("in.jsonl", [{"id": number, "text": f"row {number}"} for number in range(ROWS)])
    cloud.execute("INSERT INTO slot_pool (pool, slots, include_deferred) VALUES ('one_slot', 1, false)")
    begun = {name: Run(cloud, "patient" if name == "cleared" else name) for name in reversed(NAMES)}
    for name in ("gated", "patient", "cleared", "survivor", "deadline"):
        begun[name].until_waiting()
    return begun


def test_a_deferred_sensor_frees_the_only_worker_slot_for_another_task(cloud, runs):
    neighbour = Run(cloud, "neighbour")
    assert neighbour.end() == "success"
    assert runs["gated"].gate["state"] == "deferred"
    assert cloud.airflow.task("gated", runs["gated"].run_id, GATE)["pool"] == "one_slot"


def test_a_marked_or_cleared_sensor_ends_its_trigger(cloud, runs):
    marked, cleared = runs["patient"], runs["cleared"]
    cloud.airflow.set_task_state("patient", marked.run_id, GATE, "failed")
    cloud.airflow.clear("patient", cleared.run_id, GATE)
    cleared.until(lambda: cleared.gate["try_number"] == 2 and cleared.polls(2) >= 2, "the second try waits")
    assert cleared.gate["state"] == "deferred"
    marked.until(lambda: triggers(cloud) == 0, "no trigger is left over")
    polls = marked.polls(), cleared.polls(1)
    time.sleep(6)  # three times `poke_interval`
    assert (marked.polls(), cleared.polls(1)) == polls
    assert marked.end() == "failed"


def test_a_sensor_resumes_in_another_triggerer_with_its_remaining_timeout(cloud, runs):
    survivor, deadline = runs["survivor"], runs["deadline"]
    waiting_since = time.time()
    cloud.kill("triggerer", "TriggererJob")
    before = survivor.polls()
    cloud.airflow.start("triggerer")
    survivor.until(lambda: survivor.polls() > before, "the other triggerer polls")
    taken_over = time.time()
    recovered = time.time()
    recover(cloud, "gemini-2.5-flash-lite")
    assert survivor.end() == "success"
    gate = survivor.gate
    waited = cloud.airflow.xcom("survivor", survivor.run_id, GATE)["waited_seconds"]
    assert recovered - waiting_since < waited < (gate["end_date"] - gate["start_date"]).total_seconds()
    assert deadline.end() == "success"
    assert deadline.states == {GATE: "skipped"}
    assert deadline.gate["end_date"].timestamp() - taken_over < DEADLINE_SECONDS, "it was not begun anew"
    # The window of recent requests moves while the sensor waits.
    seen_last = EXHAUSTED.replace("1,000", r"(1,000|\d00)") + r" \d+ min ago 90\.0% were rejected"
    assert re.search(rf"within {DEADLINE_SECONDS:g} s \(`timeout`\)\. {seen_last}", deadline.log(GATE))


def test_a_sensor_that_times_out_skips_with_its_reason_and_its_alternative_runs(runs):
    run = runs["impatient"]
    assert run.end() == "success"
    assert run.states == {GATE: "skipped", "ask": "skipped", "instead": "success"}
    (skip_line,) = (line for line in run.log(GATE).splitlines() if "Skipped because `soft_fail=True`" in line)
    assert "within 8 s (`timeout`)" in skip_line
    assert EXHAUSTED in skip_line
    assert skip_line.endswith(NOTHING_LEFT)


def test_a_job_uses_the_model_and_limits_returned_by_its_sensor(cloud, runs):
    run = runs["gated"]
    recover(cloud, "gemini-2.5-flash")
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
