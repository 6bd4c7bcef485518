"""What only a real scheduler can show: `dags/` as a user runs them, killed, marked and cleared."""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path

import psutil
import pytest
from local_airflow import local_airflow

from airflow_provider_llmbeam.sandbox import Latency, ModelSettings, Quota, Sandbox

ROOT = Path(__file__).resolve().parents[2]
GEMINI = "gemini.generateContent"
TABLE = "summarise_table"
ROWS = 100


@pytest.fixture(scope="module")
def slow_sandbox():
    with Sandbox(
        models=ModelSettings(quota=Quota(requests_per_minute=600), latency=Latency(mean_seconds=0.5))
    ) as running:
        yield running


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("data")
    (directory / "tickets").mkdir()
    with (directory / "tickets" / "today.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, ["ticket_id", "text"])
        table.writeheader()
        table.writerows({"ticket_id": number, "text": f"The printer, again: {number}"} for number in range(ROWS))
    return directory


@pytest.fixture(scope="module")
def airflow(tmp_path_factory, slow_sandbox, data):
    connection = {"conn_type": "llmbeam", "host": slow_sandbox.gemini_url, "password": "k"}
    environment = {
        "LLMBEAM_DATA": str(data),
        "AIRFLOW_CONN_LLMBEAM_DEFAULT": json.dumps(connection),
        "AIRFLOW__CORE__DEFAULT_TASK_RETRIES": "1",
        "AIRFLOW__CORE__DEFAULT_TASK_RETRY_DELAY": "1",
    }
    home = tmp_path_factory.mktemp("airflow")
    with local_airflow(home, ROOT / "dags", environment) as running:
        yield running


@pytest.fixture(autouse=True)
def a_clean_slate(slow_sandbox, data):
    for path in sorted((data / "summaries").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    slow_sandbox.reset()


def test_a_task_marked_failed_takes_its_job_with_it(airflow, slow_sandbox):
    run_id = start(airflow, slow_sandbox)
    (job,) = jobs(airflow)
    airflow.set_task_state(TABLE, run_id, "summarise", "failed")
    psutil.wait_procs([job], timeout=30)
    assert not job.is_running()
    assert airflow.wait(TABLE, run_id, 30) == "failed"


def test_a_task_killed_with_kill_9_takes_its_job_with_it_and_the_retry_resumes(airflow, slow_sandbox):
    run_id = start(airflow, slow_sandbox)
    (job,) = jobs(airflow)
    job.parent().kill()
    psutil.wait_procs([job], timeout=10)
    assert not job.is_running()
    assert airflow.wait(TABLE, run_id, 120) == "success"
    assert airflow.task(TABLE, run_id, "summarise")["try_number"] == 2
    manifest = airflow.xcom(TABLE, run_id, "summarise")
    assert manifest["rows"] == {"read": ROWS, "answered": ROWS, "dead_letter": 0}
    assert manifest["origins"]["resumed"] > 0
    paid = slow_sandbox.requests.paid(GEMINI)
    assert len(paid) == ROWS
    assert paid.total() - ROWS <= 64, "paid twice: at most what was in flight"


def test_a_cleared_run_sends_nothing(airflow, slow_sandbox):
    run_id = airflow.trigger(TABLE)
    assert airflow.wait(TABLE, run_id, 120) == "success"
    sent = len(slow_sandbox.requests)
    airflow.clear(TABLE, run_id)
    assert airflow.wait(TABLE, run_id, 120) == "success"
    assert len(slow_sandbox.requests) == sent
    assert airflow.xcom(TABLE, run_id, "summarise")["origins"]["resumed"] == ROWS


def test_every_dag_of_the_folder_is_parsed_without_an_error(airflow):
    assert airflow.import_errors() == []


def start(airflow, sandbox) -> str:
    """Starts the table's Dag; returns when some rows are answered and others are not."""
    run_id = airflow.trigger(TABLE)
    wait_for(lambda: len(sandbox.requests) > ROWS / 4, 60)
    return run_id


def jobs(airflow) -> list[psutil.Process]:
    """The job processes of this Airflow that are alive."""
    return [
        process
        for process in psutil.Process(airflow.process.pid).children(recursive=True)
        if "airflow_provider_llmbeam.pipeline" in process.cmdline()
    ]


def wait_for(condition, timeout_seconds: float):
    deadline = time.monotonic() + timeout_seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.2)
    return value
