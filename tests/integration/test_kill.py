"""Kill -9 of workers and of the whole Airflow at random moments: the results equal those of an undisturbed run.

`LLMBEAM_KILLS` sets how often Airflow is killed.
"""

from __future__ import annotations

import json
import random
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from waiting import scaled, until

from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.spec import JobSpec
from tests.integration.cases import STEP_SECONDS
from tests.processes import KILLS, job_processes

pytestmark = [pytest.mark.xdist_group("airflow-jobs"), pytest.mark.timeout(scaled(600 + 60 * KILLS))]
GEMINI = "gemini.generateContent"
DAG_ID = "six_tables"
TABLES, ROWS, MAX_IN_FLIGHT = 6, 40, 8
VARYING = ("origin", "attempts", "latency_seconds")
#: Moment of a worker that is killed before the first request of its job.
AT_THE_START = -1


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


def test_a_worker_killed_at_any_moment_loses_no_row_and_pays_for_no_answer_twice(cloud, sandbox, data):
    seed = random.randrange(10**6)
    chances, killed = random.Random(seed), set()
    moments = {table: chances.randrange(AT_THE_START, ROWS) for table in range(TABLES)}
    holds = {
        table: sandbox.faults.hold(GEMINI, f"Say it: {table} ", after=max(0, moment))
        for table, moment in moments.items()
    }
    run_id = cloud.airflow.trigger(DAG_ID, {"folder": data.name})

    def state() -> str | None:
        for job, table in jobs(cloud.airflow):
            if table not in killed and (holds[table].waiting or moments[table] == AT_THE_START):
                job.parent().kill()
                killed.add(table)
                holds[table].release()
        found = cloud.airflow.run_state(DAG_ID, run_id)
        return None if found in ("queued", "running") else found

    what = f"seed {seed}"
    assert until(state, lambda: f"the end; {what}, killed {killed}", STEP_SECONDS, pause_seconds=0.2) == "success"
    assert killed == set(range(TABLES)), what
    check(sandbox, data, kills=1, what=what)


def test_an_airflow_killed_at_any_moment_loses_no_row_and_pays_for_no_answer_twice(cloud, sandbox, data):
    seed = random.randrange(10**6)
    chances = random.Random(seed)
    run_id = cloud.airflow.trigger(DAG_ID, {"folder": data.name})
    for number in range(KILLS):
        moment = chances.randrange(TABLES * ROWS // (KILLS + 1))
        hold = sandbox.faults.hold(GEMINI, after=moment)
        until(lambda: hold.waiting, f"{moment} answers before kill {number}; seed {seed}")  # noqa: B023
        cloud.airflow.kill()
        hold.release()
        for kind in ("SchedulerJob", "TriggererJob", "DagProcessorJob"):
            cloud.forget_heartbeats(kind)
        cloud.forget_task_heartbeats(run_id)
        cloud.airflow.start_again()
    assert cloud.airflow.wait(DAG_ID, run_id, 300) == "success"
    check(sandbox, data, kills=KILLS, what=f"seed {seed}")


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


def jobs(airflow) -> list[tuple[psutil.Process, int]]:
    """Returns the job processes of this Airflow and the number of the table that each reads."""
    found = []
    for process in job_processes(airflow.component("scheduler")):
        with suppress(psutil.NoSuchProcess, OSError, ValueError):  # one that has just ended
            (spec,) = (word.removeprefix("--spec=") for word in process.cmdline() if word.startswith("--spec="))
            uri = json.loads(Path(spec).read_text())["source"]["uri"]
            found.append((process, int(Path(uri).stem)))
    return found
