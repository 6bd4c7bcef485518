"""Two Airflows with the same Dags and run ids in one project: neither touches what belongs to the other."""

from __future__ import annotations

from functools import partial

import pytest
from cryptography.fernet import Fernet
from waiting import scaled, until

from airflow_provider_llmbeam.spec.fields.names import DEPLOYMENT_LABEL
from tests.integration.cases import STEP_SECONDS
from tests.integration.conftest import new_database

pytestmark = [
    pytest.mark.full,
    pytest.mark.promise(2),
    pytest.mark.promise(3),
    pytest.mark.xdist_group("airflow-jobs"),
    pytest.mark.timeout(scaled(600)),
]
MODEL = "gemini.generateContent"
RUN_ID = "nightly-2026-11-01"
ROWS = 8
RUNNING, DONE, CANCELLED = "JOB_STATE_RUNNING", "JOB_STATE_DONE", "JOB_STATE_CANCELLED"


@pytest.fixture(scope="module")
def airflows(cloud, start_airflow, postgres):
    """Production, whose deployment has a name, and a development Airflow whose name is that of its Fernet key."""
    variables = {
        "AIRFLOW__LLMBEAM__DEPLOYMENT": "",
        "AIRFLOW__CORE__FERNET_KEY": Fernet.generate_key().decode(),
    }
    with new_database(postgres) as database, start_airflow(database, "on_*.py", **variables) as development:
        yield {"production": cloud.airflow, "development": development}


def test_each_has_its_own_job_and_endpoint_and_ends_only_these(cloud, airflows, tmp_path):
    sandbox, states = cloud.sandbox, cloud.sandbox.dataflow.states
    production, development = airflows.values()
    holds, words = {}, {}
    for name, airflow in airflows.items():
        cloud.upload(f"{name}/in.jsonl", [{"id": number, "text": f"{name} {number}"} for number in range(ROWS)])
        holds[name] = sandbox.faults.hold(MODEL, f"Say {name} ", after=2)
        words[name] = tmp_path / name
        words[name].mkdir()
        airflow.trigger("garden_expiring", {"words": str(words[name])}, run_id=RUN_ID)
        airflow.trigger("deferred", {"case": name}, run_id=RUN_ID)
        # The other one's task would attach to this job, or cancel it as one of an earlier spec.
        until(lambda: holds[name].waiting, f"the job of {name} sends", STEP_SECONDS)  # noqa: B023
    for airflow in airflows.values():
        until(lambda: airflow.task("garden_expiring", RUN_ID, "endpoint.work")["state"] == "running", "work")  # noqa: B023
    jobs = dict(zip(airflows, reversed(sandbox.dataflow.jobs), strict=True))
    assert {job["currentState"] for job in jobs.values()} == {RUNNING}
    assert len({job["labels"][DEPLOYMENT_LABEL] for job in jobs.values()}) == 2
    endpoints = {one["labels"][DEPLOYMENT_LABEL]: one for one in sandbox.endpoints}
    assert len(sandbox.endpoints) == len(endpoints) == 2

    # A task that is marked before its trigger has started leaves its job (docs/reference/dataflow-cases.md). The
    # first of these lines is that of the task.
    lines = partial(development.log_lines, "deferred", RUN_ID, "ask")
    until(lambda: " ".join(lines()).count("is in state JOB_STATE") >= 2, "the trigger polls", STEP_SECONDS)
    development.set_task_state("deferred", RUN_ID, "ask", "failed")
    (words["development"] / "succeed").touch()
    until(lambda: states(jobs["development"]["id"])[-1] == CANCELLED, "the job of development is cancelled")
    assert wait(development, "garden_expiring") == "success"
    assert states(jobs["production"]["id"])[-1] == RUNNING
    (left,) = sandbox.endpoints
    assert left == endpoints[left["labels"][DEPLOYMENT_LABEL]], "neither adopted nor changed"

    for hold in holds.values():
        hold.release()
    assert wait(production, "deferred") == "success"
    assert states(jobs["production"]["id"])[-1] == DONE
    assert len(sandbox.dataflow.jobs) == 2
    assert cloud.download("production/out/answers-00000-of-00001.jsonl").count("\n") == ROWS

    sweep(development)
    assert sandbox.endpoints == [left]
    sweep(production)
    assert sandbox.endpoints == [], "production's own sweeper removes it: it counts as expired"
    (words["production"] / "succeed").touch()
    assert wait(production, "garden_expiring") == "success"
    assert sandbox.bill.running == []


def wait(airflow, dag_id, run_id=RUN_ID):
    return airflow.wait(dag_id, run_id, STEP_SECONDS)


def sweep(airflow):
    assert wait(airflow, "sweep", airflow.trigger("sweep")) == "success"
