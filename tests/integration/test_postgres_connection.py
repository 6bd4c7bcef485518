"""A `postgres` connection of Airflow as the destination of answers."""

from __future__ import annotations

import json
import subprocess
from datetime import timedelta
from urllib.parse import urlsplit

import psycopg
import pytest
from airflow.sdk import DAG
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_llmbeam.hooks.connections import sink_environment
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator
from airflow_provider_llmbeam.spec import FilesSink, PostgresSink

SECRET = "p@ss:w/rd?#&%'ä "


@pytest.fixture
def writer(database, monkeypatch):
    """The connection `answers_db`, of a user whose password has special characters."""
    at = urlsplit(database)
    with psycopg.connect(database, autocommit=True) as client:
        name = sql.Identifier(f"writer of {at.path[1:]}")
        client.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(name, SECRET))
        client.execute(sql.SQL("GRANT ALL ON SCHEMA public TO {}").format(name))
        value = {
            "conn_type": "postgres",
            "host": at.hostname,
            "port": at.port,
            "login": f"writer of {at.path[1:]}",
            "password": SECRET,
            "schema": at.path[1:],
            "extra": {"sslmode": "prefer", "connect_timeout": 5, "cursor": "dictcursor"},
        }
        monkeypatch.setenv("AIRFLOW_CONN_ANSWERS_DB", json.dumps(value))
        yield client
        client.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(name))


def operator(directory, **changes):
    arguments = {
        "task_id": "answer",
        "source": {"type": "rows", "rows": [{"id": 1, "text": "a"}, {"id": 2, "text": "b"}], "key": ["id"]},
        "prompt": {"template": "{{ row.text }}"},
        "model": {"type": "gemini"},
        "sink": {"type": "postgres", "table": "answers", "conn_id": "answers_db"},
        "state_uri": str(directory / "state"),
        "retries": 1,
        "retry_delay": timedelta(0),
    }
    return RunInferenceOperator(**(arguments | changes))


def test_answers_reach_the_database_of_the_connection_and_its_password_is_not_exposed(
    run_dag, connection, writer, tmp_path, monkeypatch, capfd
):
    commands = []
    popen = subprocess.Popen

    def watched(command, *args, **kwargs):
        commands.append(command)
        return popen(command, *args, **kwargs)

    monkeypatch.setattr(subprocess, "Popen", watched)
    with DAG("to_postgres", schedule=None) as dag:
        operator(tmp_path, model={"type": "echo"})
    dag_run, states = run_dag(dag)
    assert states == {"answer": "success"}
    assert writer.execute("SELECT id, answer FROM answers ORDER BY id").fetchall() == [(1, "a"), (2, "b")]
    manifest = dag_run.get_task_instance("answer").xcom_pull(task_ids="answer")
    (address,) = manifest["answers_uris"]
    assert address.endswith("/public.answers")
    assert any("airflow_provider_llmbeam.pipeline" in command for command in commands)
    files = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    for text in (json.dumps(manifest), str(commands), *capfd.readouterr(), *files):
        assert SECRET not in text
        assert "p%40ss" not in text


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (None, "`sink.conn_id`: there is no connection 'answers_db'. Add it under"),
        ({"conn_type": "mysql"}, "connection 'answers_db' is of type 'mysql'. Expected 'postgres'."),
        ({"conn_type": "postgres", "extra": {"iam": True}}, "uses a token of AWS IAM"),
        ({"conn_type": "postgres", "host": "127.0.0.1", "extra": {"sslmod": "x"}}, "no connection string"),
        ({"conn_type": "postgres", "host": "127.0.0.1", "extra": {"sslmode": "x"}}, 'invalid sslmode value: "x"'),
    ],
)
def test_an_unusable_connection_fails_without_a_retry_before_anything_is_sent(
    run_dag, connection, sandbox, tmp_path, monkeypatch, capfd, value, sentence
):
    if value is not None:
        monkeypatch.setenv("AIRFLOW_CONN_ANSWERS_DB", json.dumps(value))
    with DAG("nowhere", schedule=None) as dag:
        operator(tmp_path)
    dag_run, states = run_dag(dag)
    assert states == {"answer": "failed"}
    assert dag_run.get_task_instance("answer").try_number == 1, "a retry would repeat it"
    assert len(sandbox.requests) == 0
    assert sentence in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    "value",
    [
        {"host": "db.example.org", "port": 5433, "login": "me", "password": SECRET, "schema": "main"},
        {"host": "/var/run/postgresql", "login": "ä@b", "schema": "a/b"},
        {"host": "::1", "password": SECRET},
        {"host": "one,two", "port": 5432, "extra": {"target_session_attrs": "read-write", "keepalives": True}},
        {"extra": {"service": "x", "options": "-c search_path=a,b", "redshift": False}},
    ],
)
def test_the_connection_string_has_every_field_of_the_connection(monkeypatch, value):
    monkeypatch.setenv("AIRFLOW_CONN_ANSWERS_DB", json.dumps({"conn_type": "postgres", **value}))
    sink = PostgresSink(type="postgres", table="t", conn_id="answers_db", dsn_env="OTHER")
    (dsn,) = sink_environment(sink).values()
    names = {"host": "host", "port": "port", "login": "user", "password": "password", "schema": "dbname"}
    expected = {names[name]: str(given) for name, given in value.items() if name in names}
    extras = {"redshift": None, "keepalives": "1"}
    expected |= {name: extras.get(name, given) for name, given in value.get("extra", {}).items()}
    found = conninfo_to_dict(dsn)
    assert {name: str(given) for name, given in found.items() if given} == {
        name: given for name, given in expected.items() if given
    }


def test_a_sink_without_a_connection_leaves_the_environment_unchanged():
    assert sink_environment(PostgresSink(type="postgres", table="t")) == {}
    assert sink_environment(FilesSink(uri="out")) == {}
