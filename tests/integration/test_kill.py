"""Kill -9 of a worker and of the whole Airflow at random moments: the results equal those of an undisturbed run.

`LLMBEAM_KILLS` sets how often.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from waiting import scaled, until

from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.spec import JobSpec
from tests.processes import KILLS, job_processes

pytestmark = [
    pytest.mark.full,
    pytest.mark.promise(1),
    pytest.mark.promise(2),
    pytest.mark.xdist_group("airflow-jobs"),
    pytest.mark.timeout(scaled(600 + 60 * KILLS)),
]
GEMINI = "gemini.generateContent"
DAG_ID = "three_tables"
TABLES, ROWS, MAX_IN_FLIGHT = 3, 40, 8
VARYING = ("llmbeam_origin", "llmbeam_attempts", "llmbeam_latency_seconds")


@pytest.fixture
def sandbox(cloud, model_connection):
    cloud.sandbox.reset()
    return cloud.sandbox


@pytest.fixture
def data(shared_data, request):
    """The folder of one test, with the same tables in every test."""
    folder = shared_data / request.node.name
    (folder / "in").mkdir(parents=True)
    for table in range(TABLES):
        rows = [{"id": number, "text": f"{table} {number}"} for number in range(ROWS)]
        (folder / "in" / f"{table}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_worker_and_an_airflow_killed_at_any_moment_lose_no_row_and_pay_for_no_answer_twice(
    cloud, sandbox, data
):
    seed = random.randrange(10**6)
    chances = random.Random(seed)
    run_id = cloud.airflow.trigger(DAG_ID, {"folder": data.name})
    for number in range(KILLS):
        moment = chances.randrange(TABLES * ROWS // (KILLS + 1))
        hold = sandbox.faults.hold(GEMINI, after=moment)
        until(lambda: hold.waiting, f"{moment} answers before kill {number}; seed {seed}")  # noqa: B023
        kill = kill_a_worker if number % 2 == 0 else kill_airflow
        kill(cloud, run_id, hold.release)
    assert cloud.airflow.wait(DAG_ID, run_id, 300) == "success"
    check(sandbox, data, kills=KILLS, what=f"seed {seed}")


def kill_a_worker(cloud, run_id, release) -> None:
    until(lambda: job_processes(cloud.airflow.component("scheduler")), "a job runs")[0].parent().kill()
    release()


def kill_airflow(cloud, run_id, release) -> None:
    cloud.airflow.kill()
    release()
    for kind in ("SchedulerJob", "TriggererJob", "DagProcessorJob"):
        cloud.forget_heartbeats(kind)
    cloud.forget_task_heartbeats(run_id)
    cloud.airflow.start_again()


def check(sandbox, data, *, kills: int, what: str) -> None:
    """Compares the answers of all tables with those of an undisturbed run."""
    paid = sandbox.requests.paid(GEMINI)
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
    """Returns the rows of the answer file without the columns that vary between runs, sorted."""
    (answers,) = directory.glob("answers-*")
    rows = [json.loads(line) for line in answers.read_text().splitlines()]
    return sorted(str({name: value for name, value in row.items() if name not in VARYING}) for row in rows)
