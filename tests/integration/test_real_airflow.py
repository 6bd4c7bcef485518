"""What only a real scheduler can show: `dags/` as a user runs them, killed, marked and cleared."""

from __future__ import annotations

import csv

import psutil
import pytest
from llmbeam_sandbox import Fault
from waiting import scaled, until

from tests.integration.cases import STEP_SECONDS
from tests.integration.conftest import CONNECTION_KEY
from tests.processes import job_processes

pytestmark = [pytest.mark.xdist_group("airflow-services"), pytest.mark.timeout(scaled(300))]
GEMINI = "gemini.generateContent"
TABLE = "summarise_table"
ROWS = 40
#: Rows that are answered before the model is held.
ANSWERED = 12


@pytest.fixture(scope="module")
def data(shared_data):
    (shared_data / "tickets").mkdir()
    with (shared_data / "tickets" / "today.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, ["ticket_id", "text"])
        table.writeheader()
        table.writerows({"ticket_id": number, "text": f"The printer, again: {number}"} for number in range(ROWS))
    return shared_data


@pytest.fixture
def airflow(cloud, model_connection, data):
    """The shared Airflow, with nothing summarised."""
    for path in sorted((data / "summaries").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    cloud.sandbox.reset()
    return cloud.airflow


def test_a_task_marked_failed_takes_its_job_with_it(airflow, cloud):
    run_id, _ = start(cloud)
    (job,) = job_processes(airflow.component("scheduler"))
    airflow.set_task_state(TABLE, run_id, "summarise", "failed")
    psutil.wait_procs([job], timeout=scaled(30))
    assert not job.is_running()
    assert airflow.wait(TABLE, run_id, 30) == "failed"


@pytest.mark.promise(1)
@pytest.mark.promise(2)
def test_a_task_killed_with_kill_9_takes_its_job_with_it_its_retry_resumes_and_a_clear_sends_nothing(
    airflow, cloud
):
    run_id, hold = start(cloud)
    (job,) = job_processes(airflow.component("scheduler"))
    job.parent().kill()
    psutil.wait_procs([job], timeout=scaled(10))
    assert not job.is_running()
    hold.release()
    assert airflow.wait(TABLE, run_id, STEP_SECONDS) == "success"
    assert airflow.task(TABLE, run_id, "summarise")["try_number"] == 2
    manifest = airflow.xcom(TABLE, run_id, "summarise")
    assert manifest["rows"] == {"read": ROWS, "answered": ROWS, "dead_letter": 0, "skipped": 0}
    assert manifest["origins"]["resumed"] > 0
    paid = cloud.sandbox.requests.paid(GEMINI)
    assert len(paid) == ROWS
    assert paid.total() - ROWS <= 64, "paid twice: at most what was in flight"

    sent = cloud.sandbox.stats()["methods"][GEMINI]["calls"]
    airflow.clear(TABLE, run_id)
    assert airflow.wait(TABLE, run_id, STEP_SECONDS) == "success"
    assert cloud.sandbox.stats()["methods"][GEMINI]["calls"] == sent
    assert airflow.xcom(TABLE, run_id, "summarise")["origins"]["resumed"] == ROWS


def test_the_key_of_a_connection_is_nowhere_in_what_airflow_keeps(airflow, cloud, data):
    """Of this run, whose key the model refuses, and of those above."""
    cloud.sandbox.faults.every(
        GEMINI, 1, Fault(kind="error", http_status=401, message=f"No such key: {CONNECTION_KEY}")
    )
    refused = airflow.trigger(TABLE)
    assert airflow.wait(TABLE, refused, STEP_SECONDS) == "failed"
    cloud.sandbox.reset()
    kept = cloud.tables()
    assert "ticket in one sentence" in kept["rendered_task_instance_fields"]
    assert refused in kept["task_instance"]
    assert [name for name, rows in kept.items() if CONNECTION_KEY in rows] == []
    files = [path for folder in (airflow.home, data) for path in folder.rglob("*") if path.is_file()]
    logs = [path for path in files if f"run_id={refused}" in str(path)]
    assert any("No such key" in path.read_text() for path in logs)
    assert [path for path in files if CONNECTION_KEY.encode() in path.read_bytes()] == []


def test_every_dag_of_the_folder_is_parsed_without_an_error(airflow):
    assert airflow.import_errors() == []


def start(cloud):
    """Starts the table's Dag; returns its run and the hold of the model, once some rows are answered."""
    hold = cloud.sandbox.faults.hold(GEMINI, after=ANSWERED)
    run_id = cloud.airflow.trigger(TABLE)
    paid = cloud.sandbox.requests.paid
    until(lambda: paid(GEMINI).total() == ANSWERED and hold.waiting, "some rows are answered, others are held")
    return run_id, hold
