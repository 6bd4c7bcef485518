"""`llmbeam COMMAND dags/x.py::task`: the job of a task of a Dag file, as Airflow would run it."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.operators.dag_task import Question, job_of_task

pytestmark = pytest.mark.slow

DAG_FILE = """
import os
import pendulum
from airflow.sdk import DAG, TaskGroup, task
from airflow_provider_llmbeam.operators.evaluate_inference import EvaluateInferenceOperator
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

HERE = os.environ["LLMBEAM_DATA"]
ROW = {"id": 1, "text": "a"}
ECHO = {"prompt": "Say: {{ row.text }}", "model": "echo"}

with DAG("shop", schedule="@daily", start_date=pendulum.datetime(2026, 1, 1), catchup=False) as dag:
    classify = RunInferenceOperator(
        task_id="classify",
        source={"uri": HERE + "/{{ ds }}.jsonl", "key": "id"},
        prompt="Good or bad? {{ row.text }}",
        model="gemini-2.5-flash-lite",
        sink=HERE + "/out/{{ ds }}",
        state_uri=HERE + "/state",
    )
    with TaskGroup("night"):
        EvaluateInferenceOperator(
            task_id="gate",
            golden={"type": "rows", "key": "id", "rows": [{**ROW, "expected": "Say: a"}]},
            metrics={"same": {"type": "exact", "expected": "expected"}},
            source={"type": "rows", "rows": [ROW], "key": "id"},
            sink=HERE + "/gate",
            **ECHO,
        )
    RunInferenceOperator.partial(
        task_id="many", source={"type": "rows", "rows": [ROW], "key": "id"}, **ECHO
    ).expand(sink=[HERE + "/north", HERE + "/south"])

    @task
    def listed():
        return {"type": "rows", "rows": [{"id": 5, "text": "listed"}], "key": "id"}

    RunInferenceOperator(task_id="fed", source=listed(), sink=HERE + "/fed", **ECHO)

    @task.llmbeam(key="id", sink=HERE + "/made", **ECHO)
    def made():
        return [{"id": 7, "text": "made"}]

    made()
"""


@pytest.fixture
def dag_file(tmp_path, monkeypatch):
    monkeypatch.setenv("LLMBEAM_DATA", str(tmp_path))
    file = tmp_path / "dags" / "shop.py"
    file.parent.mkdir()
    file.write_text(DAG_FILE)
    rows = "".join(json.dumps({"id": number, "text": f"row {number}"}) + "\n" for number in range(4))
    (tmp_path / "2026-11-03.jsonl").write_text(rows)
    return file


@pytest.fixture
def llmbeam(dag_file, airflow_database):
    """Runs a command on a task of the file; returns exit code, standard output and standard error."""

    def run(command: str, task: str, *options: str, **environment: str):
        arguments = [sys.executable, "-m", "airflow_provider_llmbeam", command, f"{dag_file}::{task}", *options]
        ended = subprocess.run(
            arguments, capture_output=True, text=True, check=False, env=os.environ | environment
        )
        return ended.returncode, ended.stdout, ended.stderr

    return run


def test_a_task_is_checked_run_compared_previewed_and_forgotten_by_its_dag_file(
    llmbeam, dag_file, run_dag, connection, sandbox, tmp_path
):
    day = ("--date", "2026-11-03")
    code, shown, log = llmbeam("check", "classify", *day)
    assert code == 0, log
    assert "Rows      4 = 4 requests" in shown
    assert "Good or bad? row " in shown
    assert shown.endswith("Nothing was sent or billed.\n")
    assert "There is no such run yet: the job is that of a new one, 'manual__2026-11-03T00:00:00+00:00'." in log
    code, shown, log = llmbeam("preview", "classify", "--key", "3", *day)
    assert "keeps the answers, and others use them only with `cache` or `job_name`." in shown, log
    assert len(sandbox.requests) == 1
    code, shown, log = llmbeam("estimate", "classify", "--sample-size", "0", *day)
    assert shown.startswith("Rows      4 = 3 requests + 0 duplicate + 1 answered already"), log

    dag = runpy.run_path(str(dag_file))["dag"]
    run, _ = run_dag(dag.partial_subset(["classify"]), logical_date=datetime(2026, 11, 3, tzinfo=UTC))
    assert run.run_id != "manual__2026-11-03T00:00:00+00:00"
    assert len(sandbox.requests) == 1 + 4
    report = json.loads((tmp_path / "out/2026-11-03/report.json").read_text())
    assert report["estimate"], "that of its logical date"

    dag_file.write_text(DAG_FILE.replace("Good or bad?", "Good, mixed or bad?"))
    code, shown, log = llmbeam("diff", "classify")  # the newest run
    assert code == 0, log
    assert "  - Good or bad? {{ row.text }}\n  + Good, mixed or bad? {{ row.text }}" in shown
    assert "4 requests would be sent, about $" in shown
    assert "by the tokens of the last run" in shown
    code, shown, log = llmbeam("preview", "classify", "--key", "2", *day)
    assert (code, "1 prompt was sent" in shown) == (0, True), log
    assert len(sandbox.requests) == 6
    code, shown, log = llmbeam("forget", "classify", "--key", "2", *day)
    assert code == 0, log
    answers = (tmp_path / "out/2026-11-03/answers-00000-of-00001.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["id"] for line in answers) == [0, 1, 3]


def found(dag_file, task: str, step: str = "check", **asked) -> dict:
    with job_of_task(Question(address=f"{dag_file}::{task}", step=step, **asked)) as job:
        return job


def test_the_golden_set_of_an_evaluation_and_the_rows_of_a_function_are_those_of_the_task(
    dag_file, airflow_database
):
    job = found(dag_file, "night.gate", step="evaluate")
    assert job["given"]["golden"]["rows"] == [{"id": 1, "text": "a", "expected": "Say: a"}]
    assert job["spec"]["source"]["rows"] == job["given"]["golden"]["rows"]
    assert found(dag_file, "made")["spec"]["source"]["rows"] == [{"id": 7, "text": "made"}]


def test_an_instance_of_a_mapped_task_is_named_by_its_index(dag_file, airflow_database):
    assert found(dag_file, "many", map_index=1)["spec"]["sink"]["uri"].endswith("/south/")


def test_the_result_of_another_task_is_that_of_the_run(dag_file, run_dag):
    with pytest.raises(JobSpecError, match=r"takes the result of task 'listed', which run '.*' does not have"):
        found(dag_file, "fed")
    dag = runpy.run_path(str(dag_file))["dag"]
    run_dag(dag.partial_subset(["fed"], include_upstream=True))
    assert found(dag_file, "fed")["spec"]["source"]["rows"] == [{"id": 5, "text": "listed"}]


def test_a_day_is_that_of_the_zone_of_the_dag_and_the_id_of_a_run_is_its_name(dag_file, run_dag):
    dag_file.write_text(DAG_FILE.replace("datetime(2026, 1, 1)", "datetime(2026, 1, 1, tz='Europe/Berlin')"))
    dag = runpy.run_path(str(dag_file))["dag"]
    run, _ = run_dag(dag.partial_subset(["made"]), logical_date=datetime(2026, 11, 8, 23, tzinfo=UTC))
    for when in ("2026-11-09", "2026-11-09T00:00", "2026-11-08T23:00+00:00", run.run_id):
        assert found(dag_file, "made", when=when)["run_id"] == run.run_id
    assert found(dag_file, "made", when="2026-11-08")["is_known"] is False


@pytest.mark.parametrize(
    ("task", "asked", "message"),
    [
        ("gate", {}, "has no task 'gate'; did you mean `night.gate`? Its tasks for `check`: "),
        ("listed", {}, ", and `check` takes one of RunInferenceOperator. Its tasks for `check`: "),
        (
            "classify",
            {"step": "evaluate"},
            ", and `evaluate` takes one of EvaluateInferenceOperator. Its tasks for ",
        ),
        ("", {}, ": name one of its tasks, FILE::TASK. Its tasks for `check`: "),
        ("many", {}, "Task 'many' is mapped: name one of its instances, e.g. `--map-index 0`."),
        ("made", {"map_index": 0}, "`--map-index`: task 'made' is not mapped."),
        ("made", {"when": "yesterday"}, "Dag 'shop' has no run 'yesterday'. Expected a day, a time or"),
        ("other::made", {}, "has no task 'other::made'; did you mean `made`? Its tasks for `check`: "),
    ],
)
def test_what_is_not_in_the_file_is_named_with_what_is(dag_file, airflow_database, task, asked, message):
    with pytest.raises(JobSpecError) as refused:
        found(dag_file, task, **asked)
    assert message in str(refused.value)


def test_a_file_that_airflow_cannot_import_is_named_with_its_error(dag_file, airflow_database):
    dag_file.write_text("import no_such_module\n")
    with pytest.raises(JobSpecError, match="cannot be imported: ModuleNotFoundError: No module named 'no_such_m"):
        found(dag_file, "made")


def test_what_cannot_be_done_with_a_task_is_a_sentence_and_exit_code_2(llmbeam):
    code, shown, log = llmbeam("check", "made", LLMBEAM_AIRFLOW_PYTHON="/no/python")
    assert (code, shown) == (2, "")
    assert "`LLMBEAM_AIRFLOW_PYTHON`: '/no/python' cannot be started: No such file or directory." in log
    code, shown, log = llmbeam("run", "made")
    assert (code, shown) == (2, "")
    assert "`run` takes JOB.json; Airflow runs a task, e.g. `airflow dags test`. Nothing was sent" in log
