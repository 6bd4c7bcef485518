"""`RunInferenceOperator` in Dags that run in this process."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import ClassVar

import psutil
import pytest
from airflow.models.asset import AssetEvent
from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.models.xcom import XComModel
from airflow.sdk import DAG, Asset, BaseNotifier, task
from airflow.utils.session import create_session
from sqlalchemy import select
from waiting import until

from airflow_provider_llmbeam import DAY
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator
from airflow_provider_llmbeam.spec import FilesSink, FilesSource, GeminiModel, Limits
from airflow_provider_llmbeam.spec.endpoint.identity import label_value
from tests.processes import forked_jobs, job_processes

pytestmark = pytest.mark.slow


@pytest.fixture
def table(tmp_path):
    """Forty rows, one of them without the column that the prompt names."""
    path = tmp_path / "rows.jsonl"
    rows = [{"id": number, "text": f"row number {number}"} for number in range(39)] + [{"id": 39}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def operator(table, **changes):
    arguments = {
        "task_id": "answer",
        "source": {"uri": str(table), "key": ["id"]},
        "prompt": {"template": "Say it: {{ row.text }}"},
        "model": {"type": "gemini"},
        "sink": {"uri": str(table.parent / "out")},
    }
    return RunInferenceOperator(**(arguments | changes))


def test_a_manual_run_without_a_logical_date_answers_the_rows(run_dag, connection, table, sandbox):
    with DAG("manual", schedule=None) as dag:
        operator(table)
    dag_run, states = run_dag(dag, logical_date=None)
    assert dag_run.logical_date is None
    assert states == {"answer": "success"}
    manifest = dag_run.get_task_instance("answer").xcom_pull(task_ids="answer")
    assert manifest["rows"] == {"read": 40, "answered": 39, "dead_letter": 1, "skipped": 0}
    assert manifest["dead_letter_by_kind"] == {"template_error": 1}
    assert len(sandbox.requests) == 39
    assert len(json.dumps(manifest)) < 2000, "an XCom is a manifest"


def test_a_local_sink_leaves_no_empty_xcom_and_its_asset_event_carries_the_manifest(run_dag, connection, table):
    answers = Asset("file:///answers")
    with DAG("assets", schedule=None) as dag:
        operator(table, outlets=[answers])
    dag_run, states = run_dag(dag)
    assert states == {"answer": "success"}
    task_instance = dag_run.get_task_instance("answer")
    with create_session() as session:
        stored = session.scalars(select(XComModel.key).where(XComModel.run_id == dag_run.run_id)).all()
        event = session.scalars(select(AssetEvent).where(AssetEvent.source_run_id == dag_run.run_id)).one()
        shown = RenderedTaskInstanceFields.get_templated_fields(task_instance, session=session)
    assert sorted(stored) == ["llmbeam_page", "return_value"]
    assert event.extra["rows"] == {"read": 40, "answered": 39, "dead_letter": 1, "skipped": 0}
    assert event.extra["report_uri"].endswith("report.json")
    assert shown["prompt_per_row"] == {"template": "Say it: {{ row.text }}"}


class Recording(BaseNotifier):
    """Records the texts of its alerts."""

    template_fields = ("text",)
    sent: ClassVar[list[str]] = []

    def __init__(self):
        super().__init__()
        self.text = "{{ ti.task_id }}: {{ llmbeam_alert.message }}"

    def notify(self, context):
        self.sent.append(self.text)


class Failing(BaseNotifier):
    """Cannot reach anybody."""

    def notify(self, context):
        raise OSError("no route to host")


def test_notifiers_get_each_alert_of_a_run_and_one_that_fails_does_not_fail_the_task(run_dag, connection, table):
    Recording.sent.clear()
    with DAG("alerts", schedule=None) as dag:
        operator(table, alerts={"failed_row_ratio": 0.01}, notifiers=[Failing(), Recording()])
    dag_run, states = run_dag(dag)
    assert states == {"answer": "success"}
    message = "1 of 40 rows failed (2.5%; `alerts.failed_row_ratio` is 0.01)."
    assert Recording.sent == [f"answer: {message}"]
    manifest = dag_run.get_task_instance("answer").xcom_pull(task_ids="answer")
    assert [alert["message"] for alert in manifest["alerts"]] == [message]


def test_templated_fields_are_rendered_once_per_run_and_the_prompt_never(run_dag, connection, table):
    with DAG("templates", schedule=None, params={"name": "gemini-2.5-pro", "out": "rendered"}) as dag:
        operator(
            table,
            prompt={
                "template": "{{ variables.run }} {{ row.text }}",
                "variables": {"run": "{{ params.out }}", "nested": ["{{ run_id }}"]},
            },
            model={"type": "gemini", "name": "{{ params.name }}"},
            sink={"uri": f"{table.parent}/{{{{ params.out }}}}"},
            limits={"requests_per_minute": "{{ 60 * 1000 }}"},
        )
    _, states = run_dag(dag)
    assert states == {"answer": "success"}
    report = json.loads((table.parent / "rendered" / "report.json").read_text())
    assert report["model"] == "gemini:gemini-2.5-pro"
    assert report["spec"]["limits"]["requests_per_minute"] == 60_000
    assert report["spec"]["prompt"]["variables"]["run"] == "rendered"
    assert report["spec"]["prompt"]["template"] == "{{ variables.run }} {{ row.text }}"


def test_a_task_asks_for_the_flex_tier_until_its_deadline_is_near(run_dag, connection, table, sandbox):
    with DAG("flex", schedule=None, params={"tier": "flex_then_standard"}) as dag:
        operator(table, inference={"service_tier": "{{ params.tier }}", "finish_by": "PT2H"})
    dag_run, states = run_dag(dag)
    assert states == {"answer": "success"}
    manifest = dag_run.get_task_instance("answer").xcom_pull(task_ids="answer")
    assert manifest["service_tiers"] == {"flex": 7, "standard": 32}
    assert {charge.tier: charge.answers for charge in sandbox.token_bill.charges} == manifest["service_tiers"]


def test_requests_to_vertex_ai_have_the_labels_of_dag_and_task(
    run_dag, connection, table, sandbox, google, monkeypatch
):
    extra = {"project": google.project}
    monkeypatch.setenv("AIRFLOW_CONN_LLMBEAM_DEFAULT", json.dumps({**connection, "password": "", "extra": extra}))
    with DAG("Nightly", schedule=None, params={"team": "data"}) as dag:
        operator(table, model={"type": "gemini", "labels": {"team": "{{ params.team }}"}})
    assert run_dag(dag)[1] == {"answer": "success"}
    labels = {request.labels for request in sandbox.requests if request.method == "gemini.generateContent"}
    assert [dict(each) for each in labels] == [
        {"llmbeam-dag": label_value("Nightly"), "llmbeam-task": "answer", "team": "data"}
    ]


def test_a_model_from_xcom_is_used_and_sets_the_dependency(run_dag, connection, table):
    with DAG("from_xcom", schedule=None) as dag:

        @task
        def choose():
            return {"type": "gemini", "name": "gemini-2.0-flash"}

        answer = operator(table, model=choose())
    assert answer.upstream_task_ids == {"choose"}
    _, states = run_dag(dag)
    assert set(states.values()) == {"success"}
    report = json.loads((table.parent / "out" / "report.json").read_text())
    assert report["model"] == "gemini:gemini-2.0-flash"


def test_spec_values_are_accepted_like_dicts(run_dag, connection, table):
    with DAG("values", schedule=None) as dag:
        operator(
            table,
            source=FilesSource(uri=str(table), key=("id",)),
            model=GeminiModel(name="gemini-2.5-flash"),
            sink=FilesSink(uri=str(table.parent / "out")),
            limits=Limits(max_in_flight=4),
        )
    _, states = run_dag(dag)
    assert states == {"answer": "success"}


def test_the_key_of_the_connection_reaches_the_server_and_no_spec(run_dag, monkeypatch, connection, table):
    monkeypatch.setenv(
        "AIRFLOW_CONN_SECRET", json.dumps({**connection, "password": "invalid-secret-of-this-test"})
    )
    with DAG("secret", schedule=None) as dag:
        operator(table, llmbeam_conn_id="secret")
    _, states = run_dag(dag)
    assert states == {"answer": "failed"}
    (failed_rows,) = (table.parent / "out" / ".llmbeam").glob("*/failed_rows.jsonl")
    lines = failed_rows.read_text().splitlines()
    kinds = [json.loads(line)["llmbeam_error"]["kind"] for line in lines]
    assert kinds.count("unauthorized") == 39
    written = [path for path in (table.parent / "out").rglob("*") if path.is_file()]
    assert not any("secret-of-this-test" in path.read_text() for path in written)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"limits": {"max_in_flight": 0}}, "`limits.max_in_flight`"),
        ({"model": {"type": "gemni"}}, "`model.type`: must be one of 'gemini', 'openai', "),
        ({"prompt": {"template": "{{ row.text"}}, "`prompt.template`: is not a Jinja2 template"),
        ({"source": {"uri": "x.jsonl"}}, "`source.key`: this field is needed"),
        ({"source": {"uri": "table", "key": ["id"]}}, "`format` is needed: 'table' ends in none of"),
        ({"sink": {"uri": "out", "color": "red"}}, "`sink.color`: there is no such field"),
        ({"job_name": "no spaces, please"}, "`job_name`"),
    ],
)
def test_invalid_literal_values_are_refused_when_the_dag_is_parsed(table, changes, sentence):
    with pytest.raises(JobSpecError) as caught:
        operator(table, **changes)
    assert str(caught.value).startswith("Task 'answer': ")
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"limits": {"max_in_flight": "{{ 0 }}"}}, "`limits.max_in_flight`"),
        ({"model": {"type": "{{ 'gemni' }}"}}, "`model.type`: must be one of"),
        ({"source": {"uri": "{{ '/nowhere/*.jsonl' }}", "key": ["id"]}}, "matches no file"),
        ({"llmbeam_conn_id": "no_such_connection"}, "no_such_connection"),
    ],
)
def test_values_that_are_invalid_once_rendered_fail_before_anything_is_sent(
    run_dag, connection, table, sandbox, caplog, changes, sentence
):
    with DAG("wrong", schedule=None) as dag:
        operator(table, retries=1, retry_delay=timedelta(0), **changes)
    dag_run, states = run_dag(dag)
    assert states == {"answer": "failed"}, "a retry would repeat it"
    assert dag_run.get_task_instance("answer").try_number == 1
    assert len(sandbox.requests) == 0


def test_retries_wait_for_a_late_file(run_dag, connection, table, sandbox, tmp_path):
    late = tmp_path / "late.jsonl"
    source = {"uri": str(late), "key": "id", "on_missing": "retry"}

    def write(context):
        late.write_text('{"id": 1, "text": "a"}\n')

    with DAG("late", schedule=None) as dag:
        operator(table, source=source, retries=1, retry_delay=timedelta(0), on_retry_callback=write)
    dag_run, states = run_dag(dag)
    assert states == {"answer": "success"}
    assert dag_run.get_task_instance("answer").try_number == 2
    assert len(sandbox.requests) == 1


@pytest.mark.parametrize(
    ("changes", "is_warned"),
    [
        ({"sink": "gs://b/out/{{ ds }}"}, True),
        ({"sink": {"uri": "gs://b/{{ dag_run.logical_date | ds }}/"}}, True),
        ({"sink": "gs://b/out/{{ ds }}", "state_uri": "gs://b/state/"}, False),
        ({"state_uri": "gs://b/state/{{ ds }}"}, True),
        ({"sink": f"gs://b/out/{DAY}"}, True),
        ({"sink": "gs://b/{{ var.value.out }}"}, False),
    ],
)
def test_a_directory_of_each_run_without_a_state_of_all_runs_is_warned_of_at_parse(
    table, capsys, changes, is_warned
):
    operator(table, **changes)
    assert ("is another one in each run, and the journal lies below it" in capsys.readouterr().out) is is_warned


@pytest.mark.parametrize(("retries", "is_warned"), [(0, True), (2, False)])
def test_waiting_for_a_late_file_without_a_retry_is_warned_of_at_parse(table, capsys, retries, is_warned):
    operator(table, source={"uri": "late.jsonl", "key": "id", "on_missing": "retry"}, retries=retries)
    assert ("waits for a late file by the retries of the task" in capsys.readouterr().out) is is_warned


def test_the_same_connection_type_works_for_an_openai_compatible_server(run_dag, monkeypatch, table, sandbox):
    value = {"conn_type": "llmbeam", "host": sandbox.openai_url, "password": "k"}
    monkeypatch.setenv("AIRFLOW_CONN_LOCAL", json.dumps(value))
    with DAG("openai", schedule=None) as dag:
        operator(table, model={"type": "openai", "name": "gemma-3-4b-it"}, llmbeam_conn_id="local")
    _, states = run_dag(dag)
    assert states == {"answer": "success"}
    assert {request.method for request in sandbox.requests} == {"openai.chatCompletions"}


def test_a_connection_names_project_and_location_for_vertex_ai(run_dag, monkeypatch, table, sandbox, tmp_path):
    token = {"client_id": "c", "client_secret": "s", "refresh_token": "r", "token": "t"}
    path = tmp_path / "credentials.json"
    path.write_text(json.dumps({"type": "authorized_user", "expiry": "2099-01-01T00:00:00Z", **token}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    value = {
        "conn_type": "llmbeam",
        "host": sandbox.gemini_url,
        "extra": {"project": "billed", "location": "europe-west4"},
    }
    monkeypatch.setenv("AIRFLOW_CONN_VERTEX", json.dumps(value))
    with DAG("vertex", schedule=None) as dag:
        operator(table, llmbeam_conn_id="vertex")
    _, states = run_dag(dag)
    assert states == {"answer": "success"}
    model = json.loads((table.parent / "out" / "report.json").read_text())["spec"]["model"]
    assert (model["project"], model["location"]) == ("billed", "europe-west4")


def test_an_execution_timeout_ends_the_job_with_the_task(run_dag, table):
    with DAG("timeout", schedule=None) as dag:
        operator(
            table,
            model={"type": "echo", "latency_seconds": 3600},
            execution_timeout=timedelta(seconds=5),
            llmbeam_conn_id="llmbeam_default",
        )
    _, states = run_dag(dag)
    assert states == {"answer": "failed"}
    assert job_processes(psutil.Process()) == []
    until(lambda: not forked_jobs(), "the end of the job")


@pytest.mark.parametrize("nothing", [None, "gpt-4o"])
def test_an_invalid_model_from_xcom_fails_without_a_retry_before_anything_is_sent(
    run_dag, connection, table, sandbox, nothing
):
    with DAG("no_model", schedule=None) as dag:

        @task
        def choose():
            return nothing

        operator(table, model=choose(), retries=1, retry_delay=timedelta(0))
    dag_run, states = run_dag(dag)
    assert states["answer"] == "failed"
    assert dag_run.get_task_instance("answer").try_number == 1, "a retry would repeat it"
    assert len(sandbox.requests) == 0


def test_a_second_run_of_the_same_job_sends_nothing(run_dag, connection, table, sandbox):
    with DAG("cleared", schedule=None) as dag:
        operator(table, job_name="same-job")
    run_dag(dag)
    run_dag(dag)
    assert len(sandbox.requests) == 39


def test_mapped_tasks_share_no_sink_unless_it_has_their_index_and_an_empty_source_skips_its_task(
    run_dag, connection, table, sandbox
):
    sources = []
    for index, text in enumerate(["a", "b", ""]):
        path = table.parent / f"{index}.jsonl"
        path.write_text(json.dumps({"name": str(index), "text": text}) + "\n" if text else "")
        sources.append({"uri": str(path), "key": ["name"], "on_empty": "skip"})

    def states_of(dag_id, sink):
        with DAG(dag_id, schedule=None) as dag:
            RunInferenceOperator.partial(
                task_id="answer", prompt={"template": "{{ row.text }}"}, model={"type": "gemini"}, sink=sink
            ).expand(source=sources)
        dag_run, _ = run_dag(dag)
        return [str(task.state) for task in sorted(dag_run.get_task_instances(), key=lambda task: task.map_index)]

    states = states_of("one_sink", {"uri": f"{table.parent}/one"})
    assert states[:2].count("failed") == 1
    assert len(sandbox.requests) == 1
    states = states_of("sinks", {"uri": f"{table.parent}/each/{{{{ ti.map_index }}}}"})
    assert states == ["success", "success", "skipped"]
    assert len([*table.parent.glob("each/*/answers-*")]) == 2
