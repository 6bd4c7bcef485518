"""`RetryFailedRowsOperator`: failed rows through a larger model join the output of the first job."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
from airflow.sdk import DAG, TaskGroup, task, task_group

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.operators.retry_failed_rows import RetryFailedRowsOperator
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

pytestmark = pytest.mark.slow
FILE = Path(__file__).resolve().parents[2] / "dags" / "retry_failed_rows.py"


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_that_the_small_model_cut_are_answered_by_the_larger_one_and_leave_the_dead_letter(
    run_dag, connection, monkeypatch, tmp_path, sandbox
):
    monkeypatch.setenv("LLMBEAM_DATA", str(tmp_path))
    texts = [*(f"Broke after {number} days." for number in range(20)), "[[block]]"]
    rows = "".join(f"{number},{text}\n" for number, text in enumerate(texts))
    (tmp_path / "reviews.csv").write_text(f"review_id,text\n{rows}")
    dag = runpy.run_path(str(FILE))["dag"]
    dag.get_task("answer").generation = {"max_output_tokens": 15}  # the answers of the sandbox are short
    run, states = run_dag(dag)
    assert states == {"answer": "success", "retry": "success"}
    first = run.get_task_instance("answer").xcom_pull(task_ids="answer")
    second = run.get_task_instance("retry").xcom_pull(task_ids="retry")
    cut = first["dead_letter_by_kind"]["truncated"]
    assert first["dead_letter_by_kind"] == {"blocked": 1, "truncated": cut}
    assert second["rows"] == {"read": cut, "answered": cut, "dead_letter": 0, "skipped": 0}
    answers = lines(tmp_path / "complaints/answers-00000-of-00001.jsonl")
    assert sorted(int(row["review_id"]) for row in answers) == [*range(20)], (
        "each once, and all but the blocked one"
    )
    assert {row["llmbeam_model"] for row in answers} == {"gemini-2.5-flash-lite", "gemini-3.8-flash"}
    left = lines(tmp_path / "complaints/dead_letter-00000-of-00001.jsonl")
    assert [(row["review_id"], row["llmbeam_error"]["kind"]) for row in left] == [("20", "blocked")]


def test_a_run_without_such_a_failure_skips_the_task_and_leaves_the_output(run_dag, connection, tmp_path, sandbox):
    job = {"prompt": "Say it: {{ row.text }}", "model": "gemini-2.5-flash", "sink": str(tmp_path / "out")}
    rows = [{"id": 1, "text": "a"}, {"id": 2, "text": "[[block]]"}]
    with DAG("none_failed", schedule=None) as dag:
        answer = RunInferenceOperator(
            task_id="answer",
            source={"type": "rows", "rows": rows, "key": "id"},
            limits={"max_dead_letter_ratio": 1},
            **job,
        )
        answer >> RetryFailedRowsOperator(
            task_id="retry", failed_task_id="answer", failed_kinds=["truncated"], key="id", **job
        )
    _, states = run_dag(dag)
    assert states == {"answer": "success", "retry": "skipped"}
    assert len(lines(tmp_path / "out/answers-00000-of-00001.jsonl")) == 1
    assert len(lines(tmp_path / "out/dead_letter-00000-of-00001.jsonl")) == 1
    assert len(sandbox.requests) == 2


def test_rows_that_fail_again_stay_and_the_report_of_the_first_task_stays_beside_that_of_the_retry(
    run_dag, connection, tmp_path, sandbox
):
    job = {"prompt": "Say it: {{ row.text.strip() }}", "sink": str(tmp_path / "out")}
    texts = ["a", "b", "[[block]]", "[[block]] too", None]
    rows = [{"id": number, "text": text} for number, text in enumerate(texts)]
    limits = {"max_dead_letter_ratio": 0.7}
    with DAG("fails_again", schedule=None) as dag:
        answer = RunInferenceOperator(
            task_id="answer",
            source={"type": "rows", "rows": rows, "key": "id"},
            model="gemini-2.5-flash",
            limits=limits,
            **job,
        )
        retry = RetryFailedRowsOperator(
            task_id="retry", failed_task_id="answer", key="id", model="gemini-3.8-flash", **job
        )
        nothing = RetryFailedRowsOperator(
            task_id="nothing", failed_task_id="answer", failed_kinds=["timeout"], key="id", model="echo", **job
        )
        echo = RetryFailedRowsOperator(task_id="echo", failed_task_id="answer", key="id", model="echo", **job)
        answer >> retry >> nothing
        retry >> echo
    run, states = run_dag(dag)
    assert states == {"answer": "success", "retry": "success", "nothing": "skipped", "echo": "success"}
    assert len(sandbox.requests) == 2 + 2 + 2, "a row without a prompt is not sent"
    first = json.loads((tmp_path / "out/report.json").read_text())
    assert (first["model"], first["rows"]) == (
        "gemini:gemini-2.5-flash",
        {"read": 5, "answered": 2, "dead_letter": 3, "skipped": 0},
    )
    again = run.get_task_instance("retry").xcom_pull(task_ids="retry")
    assert again["rows"] == {"read": 3, "answered": 0, "dead_letter": 3, "skipped": 0}
    assert again["all_rows"] == {"read": 5, "answered": 2, "dead_letter": 3, "skipped": 0}
    last = json.loads((tmp_path / "out/report-retry.json").read_text())
    assert last["all_rows"] == {"read": 5, "answered": 4, "dead_letter": 1, "skipped": 0}
    page = (tmp_path / "out/report-retry.html").read_text()
    assert "With the first run: 4 of 5 rows answered, 1 failed." in page
    (left,) = lines(tmp_path / "out/dead_letter-00000-of-00001.jsonl")
    assert left["llmbeam_error"]["kind"] == "template_error"


def test_each_instance_of_a_mapped_task_group_sends_its_own_failed_rows(run_dag, connection, tmp_path):
    job = {
        "prompt": "Say it: {{ row.text }}",
        "sink": f"{tmp_path}/{{{{ ti.map_index }}}}",
        "limits": {"max_dead_letter_ratio": 1},
    }
    with DAG("mapped_group", schedule=None) as dag:

        @task_group
        def shop(name):
            answer = RunInferenceOperator(
                task_id="answer",
                source={
                    "type": "rows",
                    "rows": [{"id": name, "text": "[[block]]"}, {"id": 0, "text": "a"}],
                    "key": "id",
                },
                model="gemini-2.5-flash",
                **job,
            )
            answer >> RetryFailedRowsOperator(
                task_id="retry", failed_task_id="shop.answer", key="id", model="echo", **job
            )

        shop.expand(name=["north", "south"])
    run, _ = run_dag(dag)
    assert {str(one.state) for one in run.get_task_instances()} == {"success"}
    for index, name in enumerate(("north", "south")):
        answers = lines(tmp_path / f"{index}/answers-00000-of-00001.jsonl")
        assert {row["id"]: row["llmbeam_model"] for row in answers} == {name: "echo", 0: "gemini-2.5-flash"}


@pytest.mark.parametrize(
    ("failed_task_id", "message"),
    [
        ("answer", "Dag 'unfit' has no task 'answer'; did you mean `night.answer`? The id of a task has those of"),
        ("night.other", "task 'night.other' has left no dead letter in this run. Expected"),
    ],
)
def test_a_task_that_has_no_dead_letter_is_refused_by_its_id(
    run_dag, connection, tmp_path, failed_task_id, message
):
    errors = []
    job = {"prompt": "{{ row.text }}", "model": "echo", "sink": str(tmp_path / "out")}
    with DAG("unfit", schedule=None) as dag, TaskGroup("night"):

        @task
        def other():
            return None

        answer = RunInferenceOperator(
            task_id="answer", source={"type": "rows", "rows": [{"id": 1, "text": "a"}], "key": "id"}, **job
        )
        [answer, other()] >> RetryFailedRowsOperator(
            task_id="retry",
            failed_task_id=failed_task_id,
            key="id",
            on_failure_callback=lambda context: errors.append(str(context["exception"])),
            **job,
        )
    _, states = run_dag(dag)
    assert states["night.retry"] == "failed"
    (error,) = errors
    assert error.startswith(f"`failed_task_id`: {message}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "one of `failed_task_id` and `dead_letter_uri` is needed"),
        ({"failed_task_id": "a", "dead_letter_uri": "b"}, "one of"),
        ({"failed_task_id": "a", "source": {"uri": "b"}}, "no `source`"),
        ({"failed_task_id": "a", "conversation": {"key": "user"}}, "the history belongs to the task that failed"),
        ({"failed_task_id": "a", "failed_kinds": ["truncate"]}, "`source.failed_kinds.0`: must be"),
    ],
)
def test_a_wrong_argument_is_refused_when_the_dag_is_parsed(arguments, message):
    with pytest.raises(JobSpecError) as refused:
        RetryFailedRowsOperator(
            task_id="retry", key="id", prompt="{{ row.text }}", model="echo", sink="out", **arguments
        )
    assert message in str(refused.value)
