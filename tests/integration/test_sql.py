"""Rows of a SQL database in a Dag and on the command line."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import timedelta

import pytest
from airflow.sdk import DAG
from llmbeam_sandbox import Fault

from airflow_provider_llmbeam.operators.estimate import EstimateInferenceOperator
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

pytestmark = pytest.mark.slow
GEMINI = "gemini.generateContent"


@pytest.fixture
def warehouse(tmp_path, add_connection, connection):
    """A SQLite database with 30 tickets, as the connection `warehouse`."""
    add_connection("warehouse", "sqlite", str(tmp_path / "warehouse.db"))
    with closing(sqlite3.connect(tmp_path / "warehouse.db", isolation_level=None)) as database:
        database.execute("PRAGMA synchronous=OFF")
        database.execute("CREATE TABLE tickets (id INTEGER, text TEXT, day TEXT)")
        rows = ((number, f"ticket {number}", "monday" if number < 20 else "tuesday") for number in range(30))
        database.executemany("INSERT INTO tickets VALUES (?, ?, ?)", rows)
        yield database


@pytest.fixture
def arguments(tmp_path):
    return {
        "source": {
            "conn_id": "warehouse",
            "query": "SELECT id, text FROM tickets WHERE day = :day",
            "parameters": {"day": "{{ 'mon' }}day"},
            "key": "id",
        },
        "prompt": "Good or bad? {{ row.text }}",
        "model": "gemini-3.5-flash-lite",
        "sink": str(tmp_path / "out"),
    }


def answers(directory):
    lines = (line for path in directory.glob("answers-*.jsonl") for line in path.read_text().splitlines())
    return sorted(json.loads(line)["id"] for line in lines)


def test_a_retry_has_the_rows_of_the_first_try_and_pays_for_none_of_them_twice(
    warehouse, arguments, run_dag, sandbox, tmp_path
):
    """The first try fails after 19 of its 20 rows, and a row comes before the second try."""
    sandbox.faults.when(GEMINI, "ticket 7", Fault(kind="error", http_status=500), times=1)

    def change(context):
        warehouse.execute("INSERT INTO tickets VALUES (30, 'a late ticket', 'monday')")
        warehouse.execute("UPDATE tickets SET text = 'another text' WHERE id = 3")

    with DAG("night", schedule=None) as dag:
        RunInferenceOperator(
            task_id="classify",
            retries=1,
            retry_delay=timedelta(0),
            on_retry_callback=change,
            limits={"max_attempts": 1, "max_dead_letter_ratio": 0},
            **arguments,
        )
    _, states = run_dag(dag)
    assert states == {"classify": "success"}
    assert answers(tmp_path / "out") == [*range(20)]
    assert len(sandbox.requests) == 21
    assert not [*tmp_path.glob("out/.llmbeam/**/*.parquet")], "they are deleted when the answers are published"


def test_a_query_is_also_a_file_and_a_cleared_task_reads_current_rows(
    warehouse, arguments, run_dag, sandbox, tmp_path
):
    (tmp_path / "tickets.sql").write_text("SELECT id, text FROM {{ params.table }} WHERE day = :day\n")
    arguments["source"]["query"] = "tickets.sql"
    with DAG("night", schedule=None, template_searchpath=[str(tmp_path)], params={"table": "tickets"}) as dag:
        RunInferenceOperator(task_id="classify", job_name="classify", **arguments)
    assert run_dag(dag)[1] == {"classify": "success"}
    warehouse.execute("INSERT INTO tickets VALUES (30, 'a late ticket', 'monday')")
    assert run_dag(dag)[1] == {"classify": "success"}
    assert answers(tmp_path / "out") == [*range(20), 30]
    assert len(sandbox.requests) == 21


def test_an_estimate_of_a_query_counts_its_rows_and_reads_the_first_ones(
    warehouse, arguments, run_dag, sandbox, tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr("airflow_provider_llmbeam.jobs.stage.SAMPLE_ROWS", 100)
    rows = ((number, f"ticket {number}", "monday") for number in range(100, 1080))
    warehouse.executemany("INSERT INTO tickets VALUES (?, ?, ?)", rows)
    with DAG("night", schedule=None) as dag:
        EstimateInferenceOperator(task_id="estimate", sample_size=4, **arguments)
    dag_run, states = run_dag(dag)
    assert states == {"estimate": "success"}
    found = dag_run.get_task_instance("estimate").xcom_pull(task_ids="estimate")
    assert (found["rows"], found["is_sampled"]) == (1000, True)
    assert len(sandbox.requests) == 4
    assert not [*tmp_path.glob("out/.llmbeam/**/*.parquet")]


DAG_FILE = """
import os
import pytest
from airflow.sdk import DAG
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator
from tests.databases import set_hooks

set_hooks(pytest.MonkeyPatch())
with DAG("night", schedule=None):
    RunInferenceOperator(
        task_id="classify",
        source={"conn_id": "warehouse", "query": "SELECT id, text FROM tickets", "key": "id"},
        prompt="Good or bad? {{ row.text }}",
        model="gemini-3.5-flash-lite",
        sink=os.environ["LLMBEAM_DATA"] + "/out",
    )
"""


@pytest.fixture
def llmbeam():
    """Runs a command; returns its exit code, standard output and standard error."""

    def run(*arguments):
        command = [sys.executable, "-m", "airflow_provider_llmbeam", *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        return ended.returncode, ended.stdout, ended.stderr

    return run


@pytest.mark.full
def test_a_task_with_a_query_is_checked_previewed_estimated_and_forgotten_by_its_dag_file(
    warehouse, airflow_database, llmbeam, sandbox, tmp_path, monkeypatch
):
    monkeypatch.setenv("LLMBEAM_DATA", str(tmp_path))
    (tmp_path / "night.py").write_text(DAG_FILE)
    task = f"{tmp_path}/night.py::classify"
    code, shown, log = llmbeam("check", task)
    assert (code, "Rows      30 = 30 requests" in shown) == (0, True), log
    code, shown, log = llmbeam("preview", task, "--key", "7")
    assert (code, "ticket 7" in shown, len(sandbox.requests)) == (0, True, 1), log
    code, shown, log = llmbeam("estimate", task, "--sample-size", "0")
    assert (code, len(sandbox.requests)) == (0, 1), log
    code, shown, log = llmbeam("forget", task, "--key", "7")
    assert code == 0, log
    assert not [*tmp_path.glob("out/.llmbeam/**/*.parquet")]


JSON_JOB = {
    "name": "night",
    "source": {"conn_id": "warehouse", "query": "SELECT id, text FROM tickets", "key": "id"},
    "prompt": "Good or bad? {{ row.text }}",
    "model": "echo",
}


#: The Python of the environment of Airflow, with the hooks that the providers of databases would have.
PYTHON = f"""#!{sys.executable}
import os, runpy, sys
sys.path.insert(0, os.getcwd())
import pytest
from tests.databases import set_hooks

set_hooks(pytest.MonkeyPatch())
del sys.argv[:2]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def airflow_python(tmp_path, monkeypatch):
    """Writes the Python of the environment of Airflow."""

    def write(text):
        file = tmp_path / "python"
        file.write_text(text)
        file.chmod(0o700)
        monkeypatch.setenv("LLMBEAM_AIRFLOW_PYTHON", str(file))

    return write


@pytest.mark.full
def test_json_with_a_query_is_run_where_airflow_has_its_connection(
    warehouse, airflow_database, llmbeam, airflow_python, tmp_path
):
    airflow_python(PYTHON)
    job = tmp_path / "job.json"
    job.write_text(json.dumps(JSON_JOB | {"sink": str(tmp_path / "out")}))
    code, shown, log = llmbeam("check", str(job))
    assert (code, "Rows      30 = 30 requests" in shown) == (0, True), log
    code, _, log = llmbeam("run", str(job))
    assert (code, answers(tmp_path / "out")) == (0, [*range(30)]), log
    assert not [*tmp_path.glob("out/.llmbeam/**/*.parquet")]


def test_json_with_a_query_and_no_airflow_is_refused_in_a_sentence(llmbeam, airflow_python, tmp_path):
    airflow_python("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'airflow'\"; exit 1\n")
    job = tmp_path / "job.json"
    job.write_text(json.dumps(JSON_JOB | {"sink": str(tmp_path / "out")}))
    code, shown, log = llmbeam("run", str(job))
    assert (code, shown) == (2, "")
    assert "Airflow could not read `source.query` through `source.conn_id`: ModuleNotFoundError" in log
    assert "Name the Python of the environment of Airflow in LLMBEAM_AIRFLOW_PYTHON" in log
    assert log.strip().endswith("Nothing was sent or billed.")
