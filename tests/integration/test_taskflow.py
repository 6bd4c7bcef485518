"""`@task.llmbeam` in Dags that run in this process, and the Dag of `dags/` with it."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
from airflow.sdk import DAG, ObjectStoragePath, Param, task, task_group

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.operators import taskflow as llmbeam

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
REVIEWS = [{"id": number, "text": f"review {number} {{{{ not rendered }}}}"} for number in range(3)]


@pytest.fixture
def job(tmp_path):
    """Arguments of a job."""
    return {
        "prompt": {"template": "Say it: {{ row.text }}"},
        "model": {"type": "gemini", "name": "gemini-2.5-flash"},
        "sink": {"uri": str(tmp_path / "out")},
    }


def xcom(run, task_id, key="return_value"):
    return run.get_task_instance(task_id).xcom_pull(task_ids=task_id, key=key)


def test_rows_of_an_upstream_task_are_answered_and_the_answers_go_to_the_next_task(run_dag, connection, job):
    received = []
    with DAG("rows", schedule=None, params={"least": Param(1)}) as dag:

        @task
        def extract():
            return REVIEWS

        @task.llmbeam(key="id", return_answers=True, **job)
        def answer(reviews, params):
            return [review for review in reviews if review["id"] >= params["least"]]

        @task
        def load(answers):
            received.extend(answers)

        load(answer(extract()))
    run, states = run_dag(dag)
    assert states == {"extract": "success", "answer": "success", "load": "success"}
    assert sorted(each["id"] for each in received) == [1, 2]
    assert all(each["answer"] for each in received)
    assert xcom(run, "answer", "manifest")["rows"] == {"read": 2, "answered": 2, "dead_letter": 0, "skipped": 0}


def test_parts_of_a_job_come_from_a_function_in_a_group(run_dag, connection, job, tmp_path, sandbox):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(review) + "\n" for review in REVIEWS))
    with DAG("parts", schedule=None) as dag:

        @task_group
        def nightly():
            @task.llmbeam(**job)
            def answer(ti):
                variables = {"task": ti.task_id}
                return {"source": {"uri": str(path), "key": ["id"]}, "prompt_variables": variables}

            answer()

        nightly()
    run, states = run_dag(dag)
    assert states == {"nightly.answer": "success"}
    assert xcom(run, "nightly.answer")["rows"]["answered"] == 3
    assert len(sandbox.requests) == 3


def test_a_retry_calls_the_function_again_and_pays_for_no_equal_row_again(run_dag, connection, job, sandbox):
    calls = []
    limits = {"max_dead_letter_ratio": 0.0}
    with DAG("again", schedule=None) as dag:

        @task.llmbeam(key="id", limits=limits, job_name="again", **job)
        def answer():
            calls.append(1)
            return [*REVIEWS, {"id": 3, "text": "new"} if len(calls) > 1 else {"id": 3}]

        answer()
    assert run_dag(dag)[1] == {"answer": "failed"}
    assert run_dag(dag)[1] == {"answer": "success"}
    assert len(calls) == 2
    assert len(sandbox.requests) == 4


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ({"sauce": 1}, "'sauce', and these are no parts of a job"),
        ({"prompt_variables": {}}, "returned no 'source'"),
        ("a text", "returned a str; expected rows"),
        (7, "returned a int; expected rows"),
        ([1, 2], "source.rows"),
        ([{"text": "no key"}], "key"),
    ],
)
def test_a_function_that_returns_no_rows_fails_the_task_before_anything_is_sent(
    run_dag, connection, job, sandbox, capfd, returned, message
):
    with DAG("wrong", schedule=None) as dag:

        @task.llmbeam(key="id", retries=3, **job)
        def answer():
            return returned

        answer()
    assert run_dag(dag)[1] == {"answer": "failed"}
    assert message in capfd.readouterr().out
    assert not sandbox.requests


def test_without_a_key_a_function_that_returns_rows_says_what_is_missing(run_dag, connection, job, capfd):
    with DAG("no-key", schedule=None) as dag:

        @task.llmbeam(**job)
        def answer():
            return REVIEWS

        answer()
    assert run_dag(dag)[1] == {"answer": "failed"}
    assert "without `key` it returns a mapping of parts of the job" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"deferrable": True}, "`deferrable` must be False"),
        ({"source": {"uri": "a.csv", "key": "id"}}, "`source` has its own"),
        ({"return_answers": True, "sink": {"type": "bigquery", "table": "p.d.t"}}, "needs a sink of type 'files'"),
        ({"limits": {"requests_per_minute": -1}}, "requests_per_minute"),
    ],
)
def test_a_wrong_argument_is_refused_when_the_dag_is_parsed(job, changes, message):
    with DAG("refused", schedule=None):

        @task.llmbeam(key="id", **(job | {"state_uri": "gs://b/state"} | changes))
        def answer():
            return REVIEWS

        with pytest.raises(JobSpecError, match=message):
            answer()


def returned_answers(run_dag, job):
    """Returns what the next task gets of a task with `return_answers`."""
    found = []
    with DAG("answers", schedule=None) as dag:

        @task.llmbeam(key="id", return_answers=True, **job)
        def answer():
            return REVIEWS

        @task
        def load(answers):
            found.append(answers)

        load(answer())
    assert run_dag(dag)[1] == {"answer": "success", "load": "success"}
    (answers,) = found
    return answers


def test_answers_that_are_too_many_for_an_xcom_are_the_path_of_their_directory(
    run_dag, connection, job, monkeypatch, tmp_path
):
    monkeypatch.setattr(llmbeam, "MAX_ANSWERS", 2)
    path = returned_answers(run_dag, job)
    assert isinstance(path, ObjectStoragePath)
    assert len([*Path(path.path).glob("answers-*.jsonl")]) == 1


@pytest.mark.parametrize("max_answers", [3, 2])
def test_answers_on_cloud_storage_need_no_connection_to_google_cloud(
    run_dag, google, connection, job, monkeypatch, max_answers
):
    monkeypatch.delenv("AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT", raising=False)
    monkeypatch.setattr(llmbeam, "MAX_ANSWERS", max_answers)
    answers = returned_answers(run_dag, job | {"sink": {"uri": "gs://rows/out"}})
    if max_answers == 3:
        assert sorted(each["id"] for each in answers) == [0, 1, 2]
    else:
        assert (type(answers), str(answers)) == (ObjectStoragePath, "gs://rows/out")


def test_the_dag_of_the_folder_answers_each_file_with_a_mapped_task(
    run_dag, connection, tmp_path, monkeypatch, sandbox
):
    monkeypatch.setenv("LLMBEAM_DATA", str(tmp_path))
    (tmp_path / "shops").mkdir()
    for shop in ("north", "south"):
        (tmp_path / "shops" / f"{shop}.csv").write_text(f"review_id,text\n1,fine in {shop}\n2,bad in {shop}\n")
    dag = runpy.run_path(str(ROOT / "dags" / "taskflow_reviews.py"))["dag"]
    run, states = run_dag(dag)
    assert set(states.values()) == {"success"}
    assert sum(xcom(run, "count").values()) == 4
    assert len(sandbox.requests) == 4
    assert sorted(path.name for path in (tmp_path / "moods_of_shops").iterdir()) == ["0", "1"]


def test_expand_kwargs_gives_each_mapped_task_the_arguments_of_its_function(
    run_dag, connection, job, tmp_path, sandbox
):
    with DAG("expanded", schedule=None) as dag:

        @task.llmbeam(key="id", **{**job, "sink": {"uri": f"{tmp_path}/out/{{{{ ti.map_index }}}}"}})
        def answer(first, last):
            return REVIEWS[first:last]

        answer.expand_kwargs([{"first": 0, "last": 1}, {"first": 1, "last": 3}])
    run, _ = run_dag(dag)
    manifests = [
        run.get_task_instance("answer", map_index=index).xcom_pull(task_ids="answer", map_indexes=index)
        for index in range(2)
    ]
    assert [found["rows"]["answered"] for found in manifests] == [1, 2]
    assert len(sandbox.requests) == 3
