"""kill -9 of workers and of the whole Airflow, at moments at random: as if nothing had happened.

`LLMBEAM_KILLS` says how often Airflow is killed; ten take six minutes.
"""

from __future__ import annotations

import json
import os
import random
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from local_airflow import local_airflow

from airflow_provider_llmbeam.pipeline.__main__ import run
from airflow_provider_llmbeam.sandbox import Latency, ModelSettings, Sandbox
from airflow_provider_llmbeam.spec import JobSpec

DAGS = Path(__file__).parent / "dags"
DAG_ID = "ten_tables"
TABLES, ROWS, MAX_IN_FLIGHT = 10, 100, 8
AIRFLOW_KILLS = int(os.environ.get("LLMBEAM_KILLS", "2"))
VARYING = ("origin", "attempts", "latency_seconds")


@pytest.fixture
def sandbox():
    with Sandbox(models=ModelSettings(latency=Latency(mean_seconds=0.4))) as running:
        yield running


@pytest.fixture
def data(tmp_path):
    (tmp_path / "in").mkdir()
    for table in range(TABLES):
        rows = [{"id": number, "text": f"{table} {number}"} for number in range(ROWS)]
        (tmp_path / "in" / f"{table}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.fixture
def start(tmp_path, sandbox, data):
    """Starts Airflow, also once more after a kill; ends the last one with the test."""
    connection = {"conn_type": "llmbeam", "host": sandbox.gemini_url, "password": "k"}
    environment = {"LLMBEAM_DATA": str(data), "AIRFLOW_CONN_LLMBEAM_DEFAULT": json.dumps(connection)}
    with ExitStack() as stack:

        def enter():
            return stack.enter_context(local_airflow(tmp_path / "airflow", DAGS, environment))

        yield enter


@pytest.mark.timeout(300)
def test_a_worker_killed_at_any_moment_loses_no_row_and_pays_no_answer_twice(start, sandbox, data):
    seed = random.randrange(10**6)
    chances, airflow, killed = random.Random(seed), start(), {}
    run_id = airflow.trigger(DAG_ID)
    deadline = time.monotonic() + 240
    while (state := airflow.run_state(DAG_ID, run_id)) in ("queued", "running"):
        assert time.monotonic() < deadline, f"seed {seed}, killed {killed}"
        now = time.monotonic()
        for job, table in jobs(airflow.process.pid):
            at = killed.setdefault(table, now + chances.uniform(0, 6))
            if at is not None and now >= at:
                job.parent().kill()
                killed[table] = None
        time.sleep(0.05)
    assert state == "success"
    assert list(killed.values()) == [None] * TABLES, "each takes 7 s, and its moment comes before"
    check(sandbox, data, kills=1, what=f"seed {seed}")


@pytest.mark.timeout(900)
def test_an_airflow_killed_at_any_moment_loses_no_row_and_pays_no_answer_twice(start, sandbox, data):
    seed = random.randrange(10**6)
    chances, airflow = random.Random(seed), start()
    run_id = airflow.trigger(DAG_ID)
    for _ in range(AIRFLOW_KILLS):
        time.sleep(chances.uniform(1, 12))
        kill(airflow.process.pid)
        airflow = start()
    assert airflow.wait(DAG_ID, run_id, 300) == "success"
    check(sandbox, data, kills=AIRFLOW_KILLS, what=f"seed {seed}")


def check(sandbox, data, *, kills: int, what: str) -> None:
    """Compares what the tables became with an undisturbed run of each."""
    paid = sandbox.requests.paid("gemini.generateContent")
    assert len(paid) == TABLES * ROWS, what
    assert paid.total() - TABLES * ROWS <= kills * TABLES * MAX_IN_FLIGHT, what
    for table in range(TABLES):
        spec = {
            "name": f"undisturbed-{table}",
            "source": {"uri": f"{data}/in/{table}.jsonl", "key": ["id"]},
            "prompt": {"template": "Say it: {{ row.text }}"},
            "model": {"type": "gemini", "base_url": sandbox.gemini_url},
            "sink": {"uri": f"{data}/undisturbed/{table}"},
        }
        run(JobSpec.parse(spec))
        assert content(data / "out" / f"{table}") == content(data / "undisturbed" / f"{table}"), what


def content(directory: Path) -> list[str]:
    """What a run decides, without how it came about."""
    (answers,) = directory.glob("answers-*")
    rows = [json.loads(line) for line in answers.read_text().splitlines()]
    return sorted(str({name: value for name, value in row.items() if name not in VARYING}) for row in rows)


def jobs(pid: int) -> list[tuple[psutil.Process, str]]:
    """The job processes below a process, and which table each reads."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        try:
            (spec,) = (word.removeprefix("--spec=") for word in process.cmdline() if word.startswith("--spec="))
            found.append((process, json.loads(Path(spec).read_text())["source"]["uri"]))
        except (psutil.NoSuchProcess, OSError, ValueError):
            continue  # another process, or just over
    return found


def kill(pid: int) -> None:
    """Kills a process and all that came of it at one stroke."""
    root = psutil.Process(pid)
    for process in [root, *root.children(recursive=True)]:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    root.wait(10)
