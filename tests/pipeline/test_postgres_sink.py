"""Answers in a real PostgreSQL: all or none of them, each once, with any content."""

from __future__ import annotations

import itertools
import json
import logging
import math
import random
import signal
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock
from urllib.parse import urlsplit

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError, PermanentFailureError
from airflow_provider_llmbeam.pipeline import sinks, storage
from airflow_provider_llmbeam.pipeline.columns import OutputColumns
from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.pipeline.sinks import postgres as postgres_sink
from airflow_provider_llmbeam.pipeline.sinks.postgres import OUTPUT_TYPES
from airflow_provider_llmbeam.spec import JobSpec, Limits, PostgresSink
from airflow_provider_llmbeam.spec.sink import OUTPUT_COLUMNS
from tests.pipeline.conftest import read_lines
from tests.processes import until_job

pytestmark = pytest.mark.slow

DSN = "LLMBEAM_POSTGRES_DSN"
SINK = PostgresSink(type="postgres", table="answers")
ODD = [
    "plain",
    'it\'s "quoted"',
    "back\\slash \\n \\N \\x41",
    "\\.",
    "tab\there",
    "line\nbreak\r\n",
    "Grüße, 東京, 🦄",
    "{curly, braces}",
    "%s %(x)s %%",
    "'; DROP TABLE answers; --",
    "\u2028\x1f\x7f",
]


@pytest.fixture
def dsn(database, monkeypatch):
    monkeypatch.setenv(DSN, database)
    return database


@pytest.fixture
def client(dsn):
    """A connection of another client."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def start(tmp_path, dsn):
    """Returns a function that runs a job in this process and checks that every row is answered."""

    def started(rows, **changes):
        spec = spec_of(tmp_path, rows, **changes)
        manifest = run(JobSpec.parse(spec))
        assert manifest["rows"] == {"read": len(rows), "answered": len(rows), "dead_letter": 0, "skipped": 0}
        return manifest

    return started


def spec_of(directory, rows, **changes):
    source = directory / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "name": "job",
        "source": {"uri": str(source), "key": ["id"]},
        "prompt": {"template": "{{ row.text }}"},
        "model": {"type": "echo"},
        "sink": {"type": "postgres", "table": "answers"},
        "state_uri": str(directory / "state"),
    } | changes


#: Columns of a table besides its key.
COLUMNS = ", ".join(f"{name} {kind}" for name, kind in OUTPUT_TYPES.items() if name in OUTPUT_COLUMNS)


def rows_of(count, text="row number"):
    return [{"id": number, "text": f"{text} {number}"} for number in range(count)]


def record(answer="a", **changes):
    return {
        "id": 1,
        "answer": answer,
        "llmbeam_origin": "fresh",
        "llmbeam_model": "echo",
        "llmbeam_fingerprint": "f",
        "llmbeam_finish_reason": "stop",
        "llmbeam_input_tokens": 1,
        "llmbeam_output_tokens": 2,
        "llmbeam_attempts": 1,
        "llmbeam_latency_seconds": 0.25,
    } | changes


def publish(directory, *records, sink=SINK, key=("id",), refuse=None):
    """Publishes given records, staged like those of a job."""
    path = directory / f"{uuid.uuid4().hex}.jsonl"
    lines = (json.dumps(found, ensure_ascii=False) + "\n" for found in records)
    path.write_bytes("".join(lines).encode("utf-8", "surrogatepass"))
    return postgres_sink.publish(sink, OutputColumns(key=key), {0: str(path)}, refuse or refuse_none)


def refuse_none(number, reason):
    pytest.fail(f"answer {number} was refused: {reason}")


def table(client, columns="*", name="answers"):
    query = f"SELECT {columns} FROM {name} ORDER BY 1"
    return client.execute(query).fetchall()


def types(client, name="answers"):
    rows = client.execute(
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = %s"
        " ORDER BY ordinal_position",
        (name,),
    )
    return dict(rows.fetchall())


def test_every_row_of_the_source_is_a_row_of_the_table(start, client, dsn):
    manifest = start(rows_of(50))
    assert table(client, "id, answer, llmbeam_origin, llmbeam_finish_reason, llmbeam_attempts") == [
        (number, f"row number {number}", "fresh", "stop", 1) for number in range(50)
    ]
    assert [*types(client)] == ["id", *OUTPUT_COLUMNS]
    at = urlsplit(dsn)
    assert manifest["answers_uris"] == [f"postgres://127.0.0.1:{at.port}{at.path}/public.answers"]


@pytest.mark.parametrize(
    ("keys", "type_"),
    [
        ([1, -(2**63)], "bigint"),
        ([1.5, 2**53], "double precision"),
        ([True, False], "boolean"),
        (["a", "it's"], "text"),
        ([1, "1a"], "text"),
        ([1, 2**63], "text"),
        ([0.5, 2**60], "text"),
    ],
)
def test_a_new_table_has_key_columns_of_the_types_of_the_data(tmp_path, client, dsn, keys, type_):
    publish(tmp_path, *(record(id=key) for key in keys))
    assert types(client) == {
        "id": type_,
        **dict.fromkeys(
            ("answer", "llmbeam_origin", "llmbeam_model", "llmbeam_fingerprint", "llmbeam_finish_reason"), "text"
        ),
        **dict.fromkeys(("llmbeam_input_tokens", "llmbeam_output_tokens", "llmbeam_attempts"), "bigint"),
        "llmbeam_latency_seconds": "double precision",
    }
    assert {key if type_ == "double precision" else str(key) for (key,) in table(client, "id")} == {
        key if type_ == "double precision" else str(key) for key in keys
    }


@pytest.mark.full
def test_a_key_of_several_columns_with_unusual_names_is_the_primary_key(start, client):
    odd = 'select "%s"; 東京'
    rows = [{"a": 1, odd: "x", "text": "t1"}, {"a": 1, odd: "y", "text": "t2"}]
    source = {"type": "rows", "rows": rows, "key": ["a", odd]}
    start(rows, source=source)
    start(rows, source=source, prompt={"template": "{{ row.text }}!"})
    columns = sql.SQL(", ").join(map(sql.Identifier, ("a", odd, "answer"))).as_string()
    assert table(client, columns) == [(1, "x", "t1!"), (1, "y", "t2!")]


def test_a_second_run_changes_nothing(start, client):
    start(rows_of(30))
    before = table(client, "id, xmin::text, ctid::text, answers.*::text")
    assert start(rows_of(30))["origins"]["resumed"] == 30
    assert table(client, "id, xmin::text, ctid::text, answers.*::text") == before


def test_a_changed_prompt_updates_its_rows_and_keeps_all_other_values(start, client):
    start(rows_of(5))
    client.execute("ALTER TABLE answers ADD COLUMN reviewed boolean DEFAULT false")
    client.execute("UPDATE answers SET reviewed = true WHERE id < 3")
    client.execute("INSERT INTO answers (id, answer) VALUES (77, 'by hand')")
    start(rows_of(10), prompt={"template": "{{ row.text }}!"})
    expected = [(number, f"row number {number}!", number < 3) for number in range(10)]
    assert table(client, "id, answer, reviewed") == [*expected, (77, "by hand", False)]


@pytest.mark.full
def test_a_bundle_that_the_runner_repeats_publishes_once(tmp_path, client, dsn):
    manifest = run(JobSpec.parse(spec_of(tmp_path, rows_of(5))), ["--direct_runner_bundle_repeat=1"])
    assert table(client, "id, answer") == [(number, f"row number {number}") for number in range(5)]
    (address,) = manifest["answers_uris"]
    assert address.endswith("/public.answers")


def test_the_dead_letter_is_that_of_the_last_try_and_a_retry_of_its_rows_has_its_own(tmp_path, client, dsn):
    rows = [{"id": 1, "text": "a"}, {"id": 2, "text": "b", "is_hard": True}, {"id": 3, "is_hard": True}]
    fails = {"template": "{% if row.is_hard is defined %}{{ row.nothing }}{% endif %}{{ row.text }}"}
    limits = {"limits": {"max_dead_letter_ratio": 1}}

    def failed(manifest):
        return [json.loads(line)["id"] for line in storage.read(manifest["dead_letter_uri"]).splitlines()]

    first = run(JobSpec.parse(spec_of(tmp_path, rows, prompt=fails) | limits))
    source = {"uri": first["dead_letter_uri"], "key": ["id"], "failed_kinds": ["template_error"]}
    retry = run(JobSpec.parse(spec_of(tmp_path, rows) | limits | {"name": "retry", "source": source}))
    assert (failed(first), failed(retry)) == ([2, 3], [3])
    again = run(JobSpec.parse(spec_of(tmp_path, rows) | limits))  # the same job with a mended prompt
    assert (again["dead_letter_uri"], failed(again)) == (first["dead_letter_uri"], [3])
    assert table(client, "id, answer") == [(1, "a"), (2, "b")]


def test_only_rows_that_differ_are_written(start, client):
    start(rows_of(10))
    before = dict(table(client, "id, xmin::text"))
    rows = rows_of(10)
    rows[3]["text"] = "another"
    start(rows)
    after = dict(table(client, "id, xmin::text"))
    assert {key for key, xmin in after.items() if xmin != before[key]} == {3}


def test_structured_answers_are_jsonb(start, client):
    answers = [{"label": "ä", "score": 0.5}, [1, None], 7, True]
    rows = [{"id": number, "text": json.dumps(answer)} for number, answer in enumerate(answers)]
    start(rows, prompt={"template": "{{ row.text }}", "output_schema": {}})
    assert types(client)["answer"] == "jsonb"
    assert table(client, "id, answer") == [*enumerate(answers)]
    assert table(client, "answer ->> 'label'")[0] == ("ä",)


def test_text_and_structured_answers_fit_an_existing_table_of_the_other_kind(tmp_path, client, dsn):
    publish(tmp_path, record({"label": 1}))
    publish(tmp_path, record("it's \\text\0"))
    assert table(client, "answer") == [("it's \\text\ufffd",)]
    client.execute("DROP TABLE answers")
    publish(tmp_path, record("text"))
    publish(tmp_path, record({"label": [1, "ä"]}))
    assert table(client, "answer") == [('{"label": [1, "ä"]}',)]


def test_values_are_cast_to_the_types_of_an_existing_table(tmp_path, client, dsn):
    client.execute(
        "CREATE TABLE answers (added timestamptz DEFAULT now(), id uuid UNIQUE, answer json,"
        " llmbeam_origin varchar(20), llmbeam_model text, llmbeam_fingerprint text, llmbeam_finish_reason text,"
        " llmbeam_input_tokens numeric, llmbeam_output_tokens int,"
        " llmbeam_attempts int2, llmbeam_latency_seconds numeric(6, 1))"
    )
    key = str(uuid.uuid4())
    for _ in range(2):
        publish(tmp_path, record(["a", {"b": 1}], id=key))
    query = "id::text, answer, llmbeam_input_tokens, llmbeam_latency_seconds::text, added IS NULL"
    assert table(client, query) == [(key, ["a", {"b": 1}], 1, "0.3", False)]


@pytest.mark.full
def test_a_run_without_rows_neither_creates_nor_empties_a_table(start, client, tmp_path):
    (tmp_path / "rows.jsonl").touch()
    source = {"uri": str(tmp_path / "rows.jsonl"), "key": ["id"], "on_empty": "write"}
    start([], source=source)
    assert types(client) == {}
    start(rows_of(3))
    start([], source=source)
    assert len(table(client)) == 3


@pytest.mark.full
def test_columns_are_passed_through_to_a_new_table_and_an_existing_one(start, client):
    sink = {"type": "postgres", "table": "answers", "passthrough": ["lang", "size"]}
    rows = [{"id": n, "text": "x", "lang": None if n else "en", "size": n} for n in range(2)]
    start(rows, sink=sink)
    assert table(client, "id, lang, size") == [(0, "en", 0), (1, None, 1)]
    assert types(client)["size"] == "bigint"
    rows[1]["lang"] = "de"
    start(rows, sink=sink)
    assert table(client, "id, lang, size") == [(0, "en", 0), (1, "de", 1)]


@pytest.mark.full
def test_columns_are_passed_through_to_the_types_of_an_existing_table(start, client):
    outputs = ", ".join(f"{name} {OUTPUT_TYPES[name]}" for name in OUTPUT_COLUMNS)
    client.execute(
        "CREATE TABLE answers (id bigint PRIMARY KEY, size bigint, day date, tags text[], rows int[],"
        f" facts jsonb[], {outputs})"
    )
    odd = [*ODD, None, "", "NULL"]
    rows = [
        {
            "id": 1.0,
            "text": "x",
            "size": 2.0,
            "day": "",
            "tags": odd,
            "rows": [[1.0, 2], [3, None]],
            "facts": [{"a": 1}],
        },
        {"id": 2.0, "text": "x", "size": "", "day": "2026-01-02", "tags": [], "rows": "{4}", "facts": None},
    ]
    sink = {"type": "postgres", "table": "answers", "passthrough": ["size", "day", "tags", "rows", "facts"]}
    for _ in range(2):
        start(rows, sink=sink)
        assert table(client, "id, size, day::text, tags, rows, facts") == [
            (1, 2, None, odd, [[1, 2], [3, None]], [{"a": 1}]),
            (2, None, "2026-01-02", [], [4], None),
        ]


@pytest.mark.full
def test_numbers_that_are_not_finite_are_passed_through_to_a_new_table_and_an_existing_one(start, client):
    sink = {"type": "postgres", "table": "answers", "passthrough": ["size"]}
    rows = [
        {"id": n, "text": "x", "size": size} for n, size in enumerate([0.5, math.inf, -math.inf, math.nan, None])
    ]
    for _ in range(2):
        start(rows, sink=sink)
        assert table(client, "size::text") == [("-Infinity",), ("0.5",), ("Infinity",), (None,), (None,)]
    assert types(client)["size"] == "double precision"


@pytest.mark.full
def test_the_error_for_a_missing_column_to_pass_through_has_the_statement_that_adds_it(start, client):
    start(rows_of(1))
    with pytest.raises(JobSpecError, match=r"has no column 'lang', .*ADD COLUMN \"lang\" text`"):
        start(
            [{"id": 1, "text": "x", "lang": "en"}],
            sink={"type": "postgres", "table": "answers", "passthrough": ["lang"]},
        )


@pytest.mark.full
def test_bytes_are_those_of_the_source_and_an_empty_text_is_null_where_no_value_is_empty(start, client, tmp_path):
    sink = {"type": "postgres", "table": "answers", "passthrough": ["raw", "shown", "mood", "net"]}
    start([{"id": 0, "text": "x", **dict.fromkeys(sink["passthrough"], "")}], sink=sink)
    client.execute("CREATE TYPE mood AS ENUM ('happy', 'sad')")
    client.execute("ALTER TABLE answers ALTER raw TYPE bytea USING NULL, ALTER mood TYPE mood USING NULL")
    client.execute("ALTER TABLE answers ALTER net TYPE inet USING NULL")
    contents = [b"\xff\x00\x01", b"hello", b"\\x41"]
    columns = {"raw": contents, "shown": contents, "mood": [""] * 3, "net": [""] * 3}
    pq.write_table(pa.table({"id": [1, 2, 3], "text": ["x"] * 3, **columns}), tmp_path / "rows.parquet")
    source = {"uri": f"{tmp_path}/rows.parquet", "key": ["id"]}
    assert run(JobSpec.parse(spec_of(tmp_path, [], source=source, sink=sink)))["rows"]["answered"] == 3
    assert table(client, "id, raw, shown, mood, net")[1:] == [
        (1, contents[0], "/wAB", None, None),
        (2, contents[1], "hello", None, None),
        (3, contents[2], "\\x41", None, None),
    ]


def test_unusual_texts_pass_through_a_job_unchanged(start, client):
    start([{"id": text, "text": text} for text in ODD])
    assert {(key, answer) for key, answer in table(client, "id, answer")} == {(text, text) for text in ODD}


def no_nul(value):
    """Returns the value with all characters replaced that PostgreSQL cannot store."""
    if isinstance(value, str):
        return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [no_nul(found) for found in value]
    if isinstance(value, dict):
        return {no_nul(key): no_nul(found) for key, found in value.items()}
    return value


def alike(found, expected):
    """Returns whether two values are equal; PostgreSQL writes the float 5.1e16 as an integer."""
    if isinstance(expected, float):
        return float(found) == expected
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(alike, found, expected))
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(alike(found[key], expected[key]) for key in expected)
    return found == expected and type(found) is type(expected)


any_text = st.text(st.characters(exclude_categories=())) | st.sampled_from([*ODD, "", "\0", "\\u0000", "\\\0"])
any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | any_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
)
many = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.full
@many
@given(texts=st.lists(any_text, min_size=1, max_size=20, unique_by=no_nul))
def test_any_text_round_trips_through_the_table(texts, tmp_path, client, dsn):
    client.execute("DROP TABLE IF EXISTS answers")
    publish(tmp_path, *(record(text, id=text) for text in texts))
    assert {*table(client, "id, answer")} == {(no_nul(text), no_nul(text)) for text in texts}


@pytest.mark.full
@many
@given(answers=st.lists(any_json.filter(lambda value: not isinstance(value, str)), min_size=1, max_size=5))
def test_any_structured_answer_round_trips_through_the_table(answers, tmp_path, client, dsn):
    client.execute("DROP TABLE IF EXISTS answers")
    publish(tmp_path, *(record(answer, id=number) for number, answer in enumerate(answers)))
    found = [answer for _, answer in table(client, "id, answer")]
    assert all(alike(one, no_nul(answer)) for one, answer in zip(found, answers, strict=True))


def test_a_number_that_json_cannot_represent_becomes_null(tmp_path, client, dsn):
    publish(tmp_path, record({"big": float("inf"), "small": 1}))
    assert table(client, "answer") == [({"big": None, "small": 1},)]


@pytest.mark.parametrize("statement", ["INSERT", pytest.param("COPY", marks=pytest.mark.full)])
def test_a_job_killed_while_publishing_keeps_the_old_rows_and_the_next_run_sends_nothing(
    tmp_path, sandbox, client, dsn, start, statement
):
    count = 5000
    start(rows_of(count))
    old = table(client, "id, answer")
    model = {"type": "gemini", "base_url": sandbox.gemini_url}
    # Rows with equal text share a request: the sandbox answers one, and the table gets all.
    rows = [{"id": number, "text": "new " * 1000} for number in range(count)]
    path = tmp_path / "job.json"
    path.write_text(json.dumps(spec_of(tmp_path, rows, model=model)))
    with psycopg.connect(dsn) as holder:
        child = subprocess.Popen([sys.executable, "-m", "airflow_provider_llmbeam.pipeline", "--spec", str(path)])
        until_job(child, lambda: len(sandbox.requests))
        if statement == "COPY":
            query = "SELECT 1 FROM pg_stat_progress_copy WHERE tuples_processed BETWEEN 1 AND 4999"
        else:
            # This lock admits readers and blocks writers.
            holder.execute("LOCK TABLE answers IN SHARE MODE")
            query = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'INSERT%'"
        until_job(child, lambda: client.execute(query).fetchone())
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert table(client, "id, answer") == old
    paid = len(sandbox.requests)
    start(rows, model=model)
    assert len(sandbox.requests) == paid == 1
    assert len({answer for _, answer in table(client, "id, answer")} - {answer for _, answer in old}) == 1
    assert len(table(client)) == count


@pytest.mark.full
@pytest.mark.parametrize("is_new", [True, False])
def test_concurrent_jobs_share_a_table(tmp_path, client, dsn, is_new):
    if not is_new:
        publish(tmp_path, record(id=0))

    def work(first):
        records = [record(f"of {first}", id=number) for number in range(first, first + 2000)]
        publish(tmp_path, *(records if first else reversed(records)))

    with ThreadPoolExecutor(4) as pool:
        [*pool.map(work, (0, 0, 1000, 1000))]
    assert [key for (key,) in table(client, "id")] == [*range(3000)]


@pytest.mark.full
def test_two_processes_that_start_together_create_one_table(tmp_path, client, dsn):
    children = []
    for name, rows in (("one", rows_of(300)), ("two", rows_of(400)[200:])):
        directory = tmp_path / name
        directory.mkdir()
        path = directory / "job.json"
        path.write_text(json.dumps(spec_of(directory, rows, name=name)))
        command = [sys.executable, "-m", "airflow_provider_llmbeam.pipeline", "--spec", str(path)]
        children.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
    assert [child.wait() for child in children] == [0, 0]
    assert table(client, "id, answer") == [(number, f"row number {number}") for number in range(400)]


@pytest.fixture
def refused(tmp_path, sandbox, monkeypatch):
    """Returns a function that runs a job that cannot start and returns its message, which has no password."""

    def sentence(dsn, error=JobSpecError, secret="s3cret!", **changes):
        if dsn is None:
            monkeypatch.delenv(DSN, raising=False)
        else:
            monkeypatch.setenv(DSN, dsn)
        changes = {"model": {"type": "gemini", "base_url": sandbox.gemini_url}} | changes
        tried = mock.patch.object(psycopg, "connect", autospec=True, side_effect=psycopg.connect)
        with tried as connect, pytest.raises(error) as caught:
            run(JobSpec.parse(spec_of(tmp_path, rows_of(3), **changes)))
        assert type(caught.value) is error
        assert connect.call_count <= 1, "it is not tried again"
        assert len(sandbox.requests) == 0
        assert str(caught.value).endswith("Nothing was sent or billed.")
        assert secret not in str(caught.value)
        return str(caught.value)

    return sentence


@pytest.fixture
def checked(monkeypatch):
    """Returns a function that checks a sink that is refused, as each job does first, and returns the message."""

    def sentence(dsn, key=("id",)):
        monkeypatch.setenv(DSN, dsn)
        with pytest.raises(JobSpecError) as caught:
            postgres_sink.check(SINK, OutputColumns(key=key))
        assert str(caught.value).endswith("Nothing was sent or billed.")
        assert "s3cret!" not in str(caught.value)
        return str(caught.value)

    return sentence


def test_a_missing_variable_stops_the_job_before_anything_is_sent(refused):
    assert "environment variable 'LLMBEAM_POSTGRES_DSN' is not set. Expected" in refused(None)
    sink = {"type": "postgres", "table": "answers", "dsn_env": "OTHER"}
    assert "environment variable 'OTHER' is not set" in refused(None, sink=sink)


def test_a_refused_connection_stops_the_job_with_a_retryable_error(refused):
    found = refused("postgresql://me:s3cret!@127.0.0.1:1/db", error=JobFailedError)
    assert "no connection to postgres://127.0.0.1:1/db: " in found
    assert "Connection refused" in found


@pytest.mark.full
def test_a_server_that_is_down_is_reported_with_the_connection_that_the_author_named(refused):
    sink = {"type": "postgres", "table": "answers", "conn_id": "warehouse"}
    found = refused("postgresql://me:s3cret!@127.0.0.1:1/db", error=JobFailedError, sink=sink)
    assert found.startswith("`sink.conn_id`: no connection to postgres://127.0.0.1:1/db: ")
    assert "accepts what the Airflow connection 'warehouse' holds." in found
    assert "environment" not in found
    assert len(found) <= 300
    invalid = refused("s3cret!", sink=sink)
    assert "`sink.conn_id`: what the Airflow connection 'warehouse' holds is no connection string." in invalid


@pytest.mark.full
def test_a_connection_that_only_a_task_can_read_is_named_with_the_variable_that_stands_for_it(refused):
    found = refused(None, sink={"type": "postgres", "table": "answers", "conn_id": "warehouse"})
    assert found.startswith(
        "`sink.conn_id`: the Airflow connection 'warehouse', in the environment variable 'LLMBEAM_POSTGRES_DSN', "
        "is not set."
    )


@pytest.mark.full
def test_a_wrong_password_stops_the_job(refused, database):
    at = urlsplit(database)
    wrong = refused(database.replace(at.password, "s3cret!"))
    assert 'password authentication failed for user "llmbeam"' in wrong
    assert "no password supplied" in refused(database.replace(f":{at.password}", ""))


@pytest.mark.full
def test_a_missing_database_stops_the_job(refused, postgres):
    found = refused(postgres.replace("/postgres", "/nowhere"), secret=urlsplit(postgres).password)
    assert 'database "nowhere" does not exist' in found


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://me:s3cret!@x@127.0.0.1:1/db",
        "postgresql://me:s3cret!/x@127.0.0.1:1/db",
        "postgresql://me:?s3cret!&x/@127.0.0.1:1/db",
        "postgresql://me:s3cret!%@127.0.0.1:1/db",
        "postgresql://me:s3cret!%aa@127.0.0.1:1/db",
        "postgresql://me:s3cret!",
        "postgresql+psycopg://me:s3cret!@127.0.0.1:1/db",
        "host=127.0.0.1 password=s3cret! x",
        "s3cret!",
    ],
)
def test_an_invalid_connection_string_is_not_quoted(checked, dsn):
    assert "'LLMBEAM_POSTGRES_DSN' holds is no connection string. Expected `postgresql://" in checked(dsn)


@pytest.mark.full
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    head=st.text("@:/?#[]%&= '\\ab", max_size=4),
    tail=st.text("@:/?#[]%&= '\\ab", max_size=4),
)
def test_no_part_of_a_password_is_ever_quoted(head, tail, monkeypatch):
    monkeypatch.setenv(DSN, f"postgresql://me:{head}SeCrEt{tail}@127.0.0.1:1/db")
    with pytest.raises((JobSpecError, JobFailedError)) as caught:
        postgres_sink.check(SINK, OutputColumns(key=("id",)))
    assert "secret" not in str(caught.value).lower()


@pytest.fixture
def reader(client, database):
    """The connection string of a role without privileges."""
    role = f"reader_{uuid.uuid4().hex[:8]}"
    client.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 's3cret!'").format(sql.Identifier(role)))
    at = urlsplit(database)
    yield database.replace(f"{at.username}:{at.password}", f"{role}:s3cret!")
    client.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(role)))


@pytest.mark.full
def test_a_missing_permission_stops_the_job(refused, client, reader):
    assert "permission denied for schema public (42501). User 'reader_" in refused(reader)
    assert "or CREATE on the schema" in refused(reader)
    columns = ", ".join(f"{name} text" for name in OUTPUT_COLUMNS)
    client.execute(f"CREATE TABLE answers (id int PRIMARY KEY, {columns})")
    for right in ("SELECT", "INSERT", "UPDATE"):
        assert "permission denied for table answers" in refused(reader)
        client.execute(f"GRANT {right} ON answers TO {urlsplit(reader).username}")
    postgres_sink.check(SINK, OutputColumns(key=("id",)))


@pytest.fixture
def shared(client, reader):
    """A table that the role may read and write; returns the name of the role."""
    role = urlsplit(reader).username
    columns = ", ".join(f"{name} text" for name in OUTPUT_COLUMNS)
    client.execute(f"CREATE TABLE answers (id int PRIMARY KEY, {columns}, number serial)")
    client.execute(f"GRANT SELECT, INSERT, UPDATE ON answers TO {role}")
    return role


@pytest.mark.full
def test_a_sequence_that_the_user_may_not_use_stops_the_job(refused, client, reader, shared, tmp_path):
    found = refused(reader)
    assert "permission denied for sequence answers_number_seq (42501). " in found
    assert "on the table and USAGE on its sequences" in found
    client.execute(f"GRANT USAGE ON SEQUENCE answers_number_seq TO {shared}")
    postgres_sink.check(SINK, OutputColumns(key=("id",)))
    publish(tmp_path, record())
    assert [key for key, _ in table(client, "id, number")] == [1]


@pytest.mark.full
def test_no_row_is_lost_to_row_level_security(client, reader, shared, tmp_path, refusals, monkeypatch):
    client.execute(f"GRANT USAGE ON SEQUENCE answers_number_seq TO {shared}")
    client.execute("ALTER TABLE answers ENABLE ROW LEVEL SECURITY")
    monkeypatch.setenv(DSN, reader)
    # Only the values of a row decide, so that a check finds nothing.
    postgres_sink.check(SINK, OutputColumns(key=("id",)))
    refusal = 'new row violates row-level security policy for table "answers" (42501)'
    assert refusal in refusals(record())[0]
    client.execute(f"CREATE POLICY writers ON answers FOR INSERT TO {shared} WITH CHECK (id < 3)")
    assert refusal in refusals(record())[0]  # it could not be read afterwards
    client.execute("CREATE POLICY readers ON answers FOR SELECT USING (id < 2)")
    assert refusal in refusals(record(id=1), record(id=2))[1]
    publish(tmp_path, record(id=1))
    assert 'row-level security policy (USING expression) for table "answers"' in refusals(record("b", id=1))[0]
    client.execute("CREATE POLICY changers ON answers FOR UPDATE USING (true)")
    publish(tmp_path, record("b", id=1))
    assert table(client, "id, answer") == [(1, "b")]


@pytest.mark.full
def test_a_missing_schema_stops_the_job(refused, database):
    found = refused(database, sink={"type": "postgres", "table": "nowhere.answers"})
    assert 'schema "nowhere" does not exist (3F000). Create the schema first' in found


@pytest.mark.full
def test_a_table_is_created_in_its_schema(start, client):
    client.execute('CREATE SCHEMA "Reports"')
    start(rows_of(2), sink={"type": "postgres", "table": "Reports.Answers"})
    assert len(table(client, name='"Reports"."Answers"')) == 2


@pytest.mark.full
def test_a_table_is_found_through_the_search_path(start, client, dsn, monkeypatch):
    start(rows_of(2))
    client.execute("CREATE SCHEMA first")
    monkeypatch.setenv(DSN, f"{dsn}?options=-c%20search_path%3Dfirst,public")
    start(rows_of(4))
    assert len(table(client, name="public.answers")) == 4
    monkeypatch.setenv(DSN, f"{dsn}?options=-c%20search_path%3Dnowhere")
    with pytest.raises(JobSpecError, match="no schema has been selected to create in"):
        start(rows_of(4))


def test_the_error_for_missing_output_columns_has_the_statement_that_adds_them(checked, client, database):
    client.execute("CREATE TABLE answers (id int PRIMARY KEY, llmbeam_model text, note text)")
    found = checked(database)
    assert "has no column 'answer', " in found
    client.execute(found.split("`")[3])
    postgres_sink.check(SINK, OutputColumns(key=("id",)))


def test_the_error_for_a_missing_unique_key_has_the_statement_that_creates_one(checked, client, database):
    columns = ", ".join(f"{name} text" for name in OUTPUT_COLUMNS)
    client.execute(f"CREATE TABLE answers (id int, {columns})")
    found = checked(database)
    assert "has no unique constraint on ['id']" in found
    client.execute(found.split("`")[3])
    postgres_sink.check(SINK, OutputColumns(key=("id",)))


@pytest.mark.parametrize("others", ["", "UNIQUE (id, part), UNIQUE (llmbeam_model) DEFERRABLE,"])
@pytest.mark.parametrize("kind", ["UNIQUE", "PRIMARY KEY"])
def test_a_deferrable_key_stops_the_job(checked, client, database, kind, others):
    columns = ", ".join(f"{name} text" for name in OUTPUT_COLUMNS)
    client.execute(
        f"CREATE TABLE answers (id int, part text, {others} {columns},"
        f' CONSTRAINT "one\'s" {kind} (part, id) DEFERRABLE)'
    )
    found = checked(database, key=("id", "part"))
    assert "ON CONFLICT does not support deferrable unique constraints" in found


@pytest.mark.full
def test_a_deferrable_constraint_on_other_columns_does_not_stop_the_job(start, client):
    columns = ", ".join(f"{name} {OUTPUT_TYPES[name]}" for name in OUTPUT_COLUMNS)
    client.execute(f"CREATE TABLE answers (id int UNIQUE, {columns}, UNIQUE (id, answer) DEFERRABLE)")
    start(rows_of(2))
    start(rows_of(2, text="other"))
    assert [answer for _, answer in table(client, "id, answer")] == ["other 0", "other 1"]


@pytest.mark.parametrize("index", ["(id) WHERE id > 0", "(abs(id))", "(id, llmbeam_model)"])
def test_an_index_that_does_not_keep_keys_apart_stops_the_job(checked, client, database, index):
    columns = ", ".join(f"{name} text" for name in OUTPUT_COLUMNS)
    client.execute(f"CREATE TABLE answers (id int, {columns})")
    client.execute(f"CREATE UNIQUE INDEX ON answers {index}")
    assert "has no unique constraint on ['id']" in checked(database)


def test_a_table_without_the_key_stops_the_job(checked, client, database):
    client.execute("CREATE TABLE answers (number int PRIMARY KEY, answer text)")
    assert "table 'answers' has no column 'id'; it has ['number', 'answer']" in checked(database)


def test_a_required_column_without_a_value_stops_the_job(checked, client, database):
    columns = ", ".join(f"{name} text" for name in OUTPUT_COLUMNS)
    client.execute(f"CREATE TABLE answers (id int PRIMARY KEY, {columns}, made date DEFAULT now() NOT NULL)")
    client.execute("ALTER TABLE answers ADD COLUMN serial int GENERATED ALWAYS AS IDENTITY")
    postgres_sink.check(SINK, OutputColumns(key=("id",)))
    client.execute("ALTER TABLE answers ADD COLUMN owner text NOT NULL")
    found = checked(database)
    assert 'null value in column "owner" of relation "answers" violates not-null constraint (23502)' in found
    assert "Give the column a default, or" in found


def test_a_required_column_of_a_domain_stops_the_job_unless_the_domain_has_a_default(checked, client, database):
    columns = ", ".join(f"{name} text" for name in OUTPUT_COLUMNS)
    client.execute("CREATE DOMAIN filled AS int NOT NULL DEFAULT 4")
    client.execute(f"CREATE TABLE answers (id int PRIMARY KEY, size filled NOT NULL, {columns})")
    postgres_sink.check(SINK, OutputColumns(key=("id",)))
    client.execute("ALTER DOMAIN filled DROP DEFAULT")
    assert "domain filled does not allow null values (23502)" in checked(database)


@pytest.mark.parametrize(
    ("column", "type_", "fault"),
    [
        ("llmbeam_fingerprint", "varchar(32)", "value too long for type character varying(32)"),
        ("llmbeam_origin", "int", 'invalid input syntax for type integer: "fresh"'),
        ("llmbeam_attempts", "date", 'invalid input syntax for type date: "1"'),
        ("llmbeam_latency_seconds", "int", 'invalid input syntax for type integer: "0.25"'),
    ],
)
def test_a_column_that_no_answer_fits_stops_the_job(checked, client, database, column, type_, fault):
    columns = ", ".join(f"{name} {type_ if name == column else 'text'}" for name in OUTPUT_COLUMNS)
    client.execute(f"CREATE TABLE answers (id int PRIMARY KEY, {columns})")
    found = checked(database)
    assert f"PostgreSQL refused 'answers': {fault} in column {column} (" in found


@pytest.mark.parametrize(
    "type_", ["bigint", "numeric(9, 2)", "varchar(5)", "uuid", "date", "timestamptz", "text[]"]
)
def test_a_required_column_without_a_value_stops_a_job_with_a_key_of_any_usual_type(
    checked, client, database, type_
):
    columns = ", ".join(f"{name} text" for name in OUTPUT_COLUMNS)
    client.execute(f"CREATE TABLE answers (id {type_} PRIMARY KEY, {columns}, owner text NOT NULL)")
    assert 'null value in column "owner"' in checked(database)


@pytest.mark.parametrize(
    "definition",
    [
        "id int PRIMARY KEY REFERENCES people, {}",
        "id int PRIMARY KEY CHECK (id > 5), {}",
        "id mood PRIMARY KEY, {}",
        "id inet PRIMARY KEY, {}",
        "id int PRIMARY KEY, {}) PARTITION BY RANGE (id",
        "id text PRIMARY KEY, {}, length int GENERATED ALWAYS AS ((answer::jsonb -> 'a')::int) STORED NOT NULL",
    ],
)
def test_what_only_the_values_of_the_sample_break_does_not_stop_a_job(client, dsn, definition):
    client.execute("CREATE TABLE people (id int PRIMARY KEY)")
    client.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    columns = ", ".join(f"{name} {OUTPUT_TYPES[name]}" for name in OUTPUT_COLUMNS)
    client.execute(f"CREATE TABLE answers ({definition.format(columns)})")
    postgres_sink.check(SINK, OutputColumns(key=("id",)))
    assert table(client) == []


@pytest.mark.parametrize(
    "refusal",
    [
        "RAISE 'too small'",
        "RAISE 'too small' USING ERRCODE = 'MY001'",
        "SELECT id INTO STRICT NEW.id FROM answers WHERE id = NEW.id",
    ],
)
def test_a_trigger_that_raises_by_the_values_of_a_row_does_not_stop_a_job_and_one_that_cannot_run_does(
    tmp_path, checked, client, dsn, refusal
):
    publish(tmp_path, record(id=1))
    trigger(client, f"IF NEW.id < 1 THEN {refusal}; END IF; RETURN NEW;")
    postgres_sink.check(SINK, OutputColumns(key=("id",)))
    client.execute(
        "CREATE OR REPLACE FUNCTION guard() RETURNS trigger LANGUAGE plpgsql"
        " AS 'BEGIN INSERT INTO log VALUES (NEW.id); RETURN NEW; END'"
    )
    assert 'relation "log" does not exist (42P01)' in checked(dsn)


@pytest.mark.full
@pytest.mark.parametrize(
    ("key", "table_end", "fault", "correction"),
    [
        (
            "REFERENCES people",
            "",
            'violates foreign key constraint "answers_id_fkey" (23503). Key (id)=(2) is not present in table '
            '"people".',
            "INSERT INTO people VALUES (2)",
        ),
        (
            "REFERENCES people DEFERRABLE INITIALLY DEFERRED",
            "",
            'violates foreign key constraint "answers_id_fkey" (23503). Key (id)=(2) is not present in table '
            '"people".',
            "INSERT INTO people VALUES (2)",
        ),
        (
            "",
            ") PARTITION BY RANGE (id",
            'no partition of relation "answers" found for row (23514). Partition key of the failing row contains '
            "(id) = (2).",
            "CREATE TABLE others PARTITION OF answers DEFAULT",
        ),
        (
            "",
            ", UNIQUE (llmbeam_finish_reason)",
            'answers_llmbeam_finish_reason_key" (23505). Key (llmbeam_finish_reason)=(stop) already exists.',
            "ALTER TABLE answers DROP CONSTRAINT answers_llmbeam_finish_reason_key",
        ),
        (
            "",
            ", CONSTRAINT short CHECK (id < 2)",
            'violates check constraint "short" (23514). Change the row or the constraint.',
            "ALTER TABLE answers DROP CONSTRAINT short",
        ),
    ],
    ids=["foreign key", "deferred foreign key", "no partition", "unique", "check"],
)
def test_a_row_that_a_constraint_refuses_is_named_and_a_retry_after_the_correction_sends_nothing(
    tmp_path, sandbox, client, dsn, key, table_end, fault, correction
):
    columns = ", ".join(f"{name} {OUTPUT_TYPES[name]}" for name in OUTPUT_COLUMNS)
    client.execute("CREATE TABLE people (id int PRIMARY KEY)")
    client.execute("INSERT INTO people VALUES (0), (1)")
    client.execute(f"CREATE TABLE answers (id int PRIMARY KEY {key}, {columns}{table_end})")
    if "PARTITION" in table_end:
        client.execute("CREATE TABLE low PARTITION OF answers FOR VALUES FROM (0) TO (2)")
    model = {"type": "gemini", "base_url": sandbox.gemini_url}
    spec = JobSpec.parse(spec_of(tmp_path, rows_of(3), model=model))
    with pytest.raises(PermanentFailureError) as caught:
        run(spec)
    assert fault in str(caught.value)
    assert "another run sends nothing, and publishes them once the sink takes them" in str(caught.value)
    assert (len(table(client)), len(sandbox.requests)) == (0, 3)
    others = run(spec.model_copy(update={"limits": Limits(max_dead_letter_ratio=0.9)}))
    refused = [row["id"] for row in read_lines(Path(others["dead_letter_uri"]))]
    assert ([*range(3 - len(refused))], refused) == (
        [key for key, *_ in table(client)],
        [*range(3)][-len(refused) :],
    )
    client.execute(correction)
    run(spec)
    assert (len(table(client)), len(sandbox.requests)) == (3, 3)


def test_the_error_for_a_row_that_a_constraint_refuses_is_short(tmp_path, client, refusals):
    publish(tmp_path, record("x" * 2000))
    client.execute("ALTER TABLE answers ADD UNIQUE (answer)")
    assert refusals(record("x" * 2000, id=2))[0].endswith(f"Key (answer)=({'x' * 286}…")


def test_a_view_stops_the_job(checked, client, database):
    columns = ", ".join(f"1 AS {name}" for name in ("id", *OUTPUT_COLUMNS))
    client.execute(f"CREATE VIEW answers AS SELECT {columns}")
    assert "cannot insert into view" in checked(database)


@pytest.mark.parametrize("name", ["x" * 64, "ä" * 32, "", "a\0b", "a\ud800"])
def test_a_name_that_postgresql_would_change_stops_the_job(dsn, name):
    with pytest.raises(JobSpecError, match="PostgreSQL cannot have a name like"):
        postgres_sink.check(SINK, OutputColumns(key=(name,)))


def test_a_check_leaves_nothing_behind(client, dsn):
    postgres_sink.check(SINK, OutputColumns(key=("id",)))
    assert types(client) == {}


def test_a_locked_table_does_not_prevent_the_start_of_a_job(client, dsn, caplog):
    create = f"CREATE TABLE answers (id int PRIMARY KEY, {', '.join(f'{name} text' for name in OUTPUT_COLUMNS)})"
    with psycopg.connect(dsn) as holder, caplog.at_level(logging.WARNING):
        holder.execute(create)
        postgres_sink.check(SINK, OutputColumns(key=("id",)))
        holder.commit()
        holder.execute("LOCK TABLE answers IN ACCESS EXCLUSIVE MODE")
        postgres_sink.check(SINK, OutputColumns(key=("id",)))
    warnings = [message for message in caplog.messages if "answers" in message]
    assert warnings == ["Table 'answers' is locked by another session, so it was not checked."] * 2


def test_the_error_for_a_missing_client_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "airflow_provider_llmbeam.pipeline.sinks.postgres")
    monkeypatch.delattr(sinks, "postgres")
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(JobSpecError, match=r"pip install 'airflow-provider-llmbeam\[postgres\]'"):
        sinks.check(JobSpec.parse(spec_of(tmp_path, [])))


@pytest.fixture
def late(tmp_path, dsn):
    """Returns a function that runs a publication which the server refuses, and returns the error message."""

    def sentence(*records):
        with pytest.raises(JobFailedError) as caught:
            publish(tmp_path, *records)
        found = str(caught.value)
        assert found.endswith("the answers are in the journal: a retry sends nothing.")
        return found

    return sentence


@pytest.fixture
def refusals(tmp_path, dsn):
    """Returns a function that publishes records, and returns why the server refuses some, by their positions."""

    def found(*records):
        reasons = {}
        publish(tmp_path, *records, refuse=reasons.__setitem__)
        return reasons

    return found


def test_a_key_that_does_not_fit_its_column_is_refused_and_the_others_are_stored(tmp_path, client, refusals):
    publish(tmp_path, record(id=1))
    found = refusals(record("new", id=1), record(id="A7"), record(id=3))
    assert list(found) == [1]
    assert 'invalid input syntax for type bigint: "A7" in column id (22P02)' in found[1]
    assert table(client, "id, answer") == [(1, "new"), (3, "a")]


def test_keys_that_are_equal_in_the_table_are_refused_and_none_of_them_is_chosen(tmp_path, client, refusals):
    publish(tmp_path, record(id="a"))
    found = refusals(record(id="1"), record(id=1), record(id="b"))
    assert list(found) == [0, 1]
    assert "Rows with different keys have one key in table 'answers': '1'." in found[0]
    assert table(client, "id") == [("a",), ("b",)]


def test_equal_keys_that_python_has_no_value_for_are_refused(client, refusals):
    client.execute(f"CREATE TABLE answers (id date PRIMARY KEY, {COLUMNS})")
    found = refusals(record(id="infinity"), record(id="Infinity"), record(id="2026-01-01"))
    assert list(found) == [0, 1]
    assert "one key in table 'answers': 'infinity'." in found[0]
    assert table(client, "id::text") == [("2026-01-01",)]


@pytest.mark.parametrize(("kind", "value"), [("regclass", "no_such_table"), ("tsvector", '{"a": 1}')])
def test_a_value_that_its_type_looks_up_or_parses_is_refused_and_the_others_are_stored(
    client, refusals, kind, value
):
    client.execute(f"CREATE TABLE answers (id {kind} PRIMARY KEY, {COLUMNS})")
    assert list(refusals(record(id="pg_class"), record(id=value))) == [1]
    assert table(client, "id::text") == ([("pg_class",)] if kind == "regclass" else [("'pg_class'",)])


@pytest.mark.fuzz
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    broken=st.sets(st.integers(0, 60), max_size=12), texts=st.lists(st.text(max_size=5), min_size=61, max_size=61)
)
def test_whichever_rows_the_server_refuses_all_others_are_stored(tmp_path, client, dsn, broken, texts):
    client.execute("DROP TABLE IF EXISTS answers")
    outputs = ", ".join(f"{name} {OUTPUT_TYPES[name]}" for name in OUTPUT_COLUMNS)
    client.execute(f"CREATE TABLE answers (id int PRIMARY KEY, {outputs}, CHECK (answer <> 'no'))")
    reasons, faults = (
        {},
        itertools.cycle([{"answer": "no"}, {"id": "x"}, {"id": 2**40}, {"llmbeam_attempts": "many"}]),
    )
    records = [record(text, id=number) for number, text in enumerate(texts)]
    records = [each | next(faults) if number in broken else each for number, each in enumerate(records)]
    publish(tmp_path, *records, refuse=reasons.__setitem__)
    assert {*reasons} == broken
    assert [key for (key,) in table(client, "id")] == [number for number in range(61) if number not in broken]


def test_a_row_that_the_table_does_not_take_is_in_the_dead_letter_as_it_was_read(tmp_path, sandbox, client, dsn):
    words = "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=9000))  # an index stores 2704 bytes
    rows = [
        {"id": words if number == 7 else f"k{number}", "text": f"<{number}>", "extra": [number]}
        for number in range(12)
    ]
    model = {"type": "gemini", "base_url": sandbox.gemini_url}
    spec = spec_of(tmp_path, rows, model=model)
    manifest = run(JobSpec.parse(spec))
    assert manifest["rows"] == {"read": 12, "answered": 11, "dead_letter": 1, "skipped": 0}
    assert len(table(client)) == 11
    (row,) = read_lines(Path(manifest["dead_letter_uri"]))
    error = row.pop("llmbeam_error")
    assert row == rows[7]
    assert error["kind"] == "not_stored"
    assert "index row requires" in error["message"]
    assert "(54000)" in error["message"]
    paid = len(sandbox.requests)
    again = run(JobSpec.parse(spec))
    assert (again["rows"], len(sandbox.requests)) == (manifest["rows"], paid), "what was paid is not paid again"


def test_a_value_of_another_type_in_a_later_run_concerns_its_row_alone(tmp_path, sandbox, client, dsn):
    sink = {"type": "postgres", "table": "answers", "passthrough": ["size"]}
    model = {"type": "gemini", "base_url": sandbox.gemini_url}
    rows = [{"id": number, "text": f"t{number}", "size": number} for number in range(12)]
    run(JobSpec.parse(spec_of(tmp_path, rows, sink=sink, model=model)))
    rows[4]["size"] = "XL"
    manifest = run(JobSpec.parse(spec_of(tmp_path, rows, sink=sink, model=model)))
    assert manifest["rows"] == {"read": 12, "answered": 11, "dead_letter": 1, "skipped": 0}
    assert (
        'type bigint: "XL" in column size'
        in read_lines(Path(manifest["dead_letter_uri"]))[0]["llmbeam_error"]["message"]
    )
    client.execute("ALTER TABLE answers ALTER COLUMN size TYPE text")
    assert run(JobSpec.parse(spec_of(tmp_path, rows, sink=sink, model=model)))["rows"]["answered"] == 12
    assert (dict(table(client, "id, size"))[4], len(sandbox.requests)) == ("XL", 12)


def test_above_the_ratio_nothing_is_stored_and_the_dead_letter_stays_that_of_the_answers(tmp_path, client, dsn):
    rows = rows_of(12)
    before = run(JobSpec.parse(spec_of(tmp_path, [*rows, {"id": 99}], limits={"max_dead_letter_ratio": 0.1})))
    stored, dead = table(client), read_lines(Path(before["dead_letter_uri"]))
    client.execute("ALTER TABLE answers ADD CONSTRAINT few CHECK (answer NOT LIKE 'new%' OR id > 3)")
    spec = JobSpec.parse(spec_of(tmp_path, rows_of(12, "new"), limits={"max_dead_letter_ratio": 0.25}))
    with pytest.raises(PermanentFailureError, match='violates check constraint "few"'):
        run(spec)
    assert (table(client), read_lines(Path(before["dead_letter_uri"]))) == (stored, dead)
    assert [row["id"] for row in read_lines(Path(spec.paths.failed_rows_uri))] == [0, 1, 2, 3]


def test_a_masked_row_that_is_refused_stays_masked_in_the_dead_letter(tmp_path, client, dsn, monkeypatch):
    monkeypatch.setenv("LLMBEAM_PRIVACY_KEY", "the secret of the tests")
    columns = ", ".join(f"{name} {OUTPUT_TYPES[name]}" for name in OUTPUT_COLUMNS)
    client.execute(f"CREATE TABLE answers (id int PRIMARY KEY, mail text UNIQUE, {columns})")
    rows = [
        {"id": number, "text": "a", "mail": f"p{number // 2 if number < 2 else number}@example.com"}
        for number in range(12)
    ]
    sink = {"type": "postgres", "table": "answers", "passthrough": ["mail"]}
    manifest = run(JobSpec.parse(spec_of(tmp_path, rows, sink=sink, safety={"privacy": {}})))
    assert manifest["rows"]["dead_letter"] == 1
    text = Path(manifest["dead_letter_uri"]).read_text()
    assert "llmbeam_vault" in text
    assert "p0@example.com" not in text
    assert "p0@example.com" not in Path(manifest["report_uri"]).read_text()


def trigger(client, body, events="INSERT OR UPDATE", on="answers"):
    """Makes a trigger that runs `body` before each row."""
    client.execute(f"CREATE FUNCTION guard() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {body} END$$")
    client.execute(f"CREATE TRIGGER guard BEFORE {events} ON {on} FOR EACH ROW EXECUTE FUNCTION guard()")


@pytest.mark.full
@pytest.mark.parametrize("of", ["a table", "a partition", "the table of a view"])
def test_rows_that_a_trigger_keeps_out_of_the_table_are_refused(tmp_path, client, refusals, of):
    outputs = ", ".join(f"{name} {OUTPUT_TYPES[name]}" for name in OUTPUT_COLUMNS)
    kept = "answers"
    if of == "a partition":
        client.execute(f"CREATE TABLE answers (id int PRIMARY KEY, {outputs}) PARTITION BY RANGE (id)")
        client.execute("CREATE TABLE kept PARTITION OF answers DEFAULT")
        kept = "kept"
    elif of == "the table of a view":
        client.execute(f"CREATE TABLE kept (id int PRIMARY KEY, {outputs})")
        client.execute("CREATE VIEW answers AS SELECT * FROM kept")
        kept = "kept"
    publish(tmp_path, record(id=1), record(id=2))
    trigger(client, "IF NEW.id > 2 THEN RETURN NULL; END IF; RETURN NEW;", on=kept)
    found = refusals(record("new", id=1), record(id=2), *(record(id=number) for number in range(3, 9)))
    assert list(found) == [2, 3, 4, 5, 6, 7]
    assert "A trigger has returned NULL, for which PostgreSQL stores nothing" in found[2]
    assert table(client, "id, answer") == [(1, "new"), (2, "a")]
    client.execute(
        "CREATE OR REPLACE FUNCTION guard() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'"
    )
    publish(tmp_path, record("new", id=1), *(record(id=number) for number in range(2, 9)))
    assert table(client, "id, answer") == [(1, "new"), *((number, "a") for number in range(2, 9))]


def test_rows_that_a_trigger_puts_into_a_child_of_the_table_are_stored(tmp_path, client, dsn):
    publish(tmp_path, record(id=1))
    client.execute("CREATE TABLE many (CHECK (id > 1), UNIQUE (id)) INHERITS (answers)")
    insert = "DELETE FROM many WHERE id = NEW.id; INSERT INTO many VALUES (NEW.*);"
    trigger(client, f"IF NEW.id = 1 THEN RETURN NEW; END IF; {insert} RETURN NULL;", events="INSERT")
    for answer in ("a", "b", "b"):
        publish(tmp_path, *(record(answer, id=number) for number in (1, 2, 3)))
        assert table(client, "id, answer") == [(number, answer) for number in (1, 2, 3)]


def test_rows_that_a_trigger_stores_with_other_values_are_stored(tmp_path, client, dsn):
    publish(tmp_path, record(id="a"))
    trigger(client, "NEW.id := lower(NEW.id); NEW.answer := upper(NEW.answer); RETURN NEW;")
    for answer in ("a", "b", "b"):
        publish(tmp_path, *(record(answer, id=key) for key in ("A", "b", "C")))
        assert table(client, "id, answer") == [(key, answer.upper()) for key in ("a", "b", "c")]


def test_a_variable_that_is_missing_at_publication_keeps_the_answers(late, monkeypatch):
    monkeypatch.delenv(DSN)
    assert "is not set" in late(record())


@pytest.mark.full
def test_a_server_that_ends_the_session_keeps_the_answers(tmp_path, client, dsn, monkeypatch):
    publish(tmp_path, record())

    def killing(_):
        yield record("new")
        client.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'llmbeam'")
        for number in range(200_000):
            yield record("x" * 100, id=number + 2)

    monkeypatch.setattr(postgres_sink, "read_records", killing)
    with pytest.raises(JobFailedError, match=r"a retry sends nothing\.$"):
        postgres_sink.publish(SINK, OutputColumns(key=("id",)), {}, refuse_none)
    assert table(client, "answer") == [("a",)]


@pytest.mark.full
def test_the_password_is_in_no_file_and_no_output_line_of_the_job(tmp_path, dsn):
    path = tmp_path / "job.json"
    path.write_text(json.dumps(spec_of(tmp_path, rows_of(3))))
    command = [sys.executable, "-m", "airflow_provider_llmbeam.pipeline", "--spec", str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Table 'public.answers': 3 of 3 rows are new or changed." in ended.stderr
    files = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 3
    assert [text for text in (*files, ended.stdout, ended.stderr) if urlsplit(dsn).password in text] == []


TRANSLATED = {
    "type": "object",
    "properties": {"title_de": {"type": "string"}, "size": {"type": "integer"}, "tags": {"type": "array"}},
    "required": ["title_de"],
}


def publish_translated(directory, rows):
    """Publishes answers with fields into a table of the author's own."""
    sink = PostgresSink(type="postgres", table="products", answer_columns="flat", details=False)
    spec = JobSpec.parse(
        spec_of(directory, rows, sink=sink.model_dump())
        | {"prompt": {"template": "{{ row.text }}", "output_schema": TRANSLATED}}
    )
    columns, path, reasons = OutputColumns.of(spec), directory / "staged.jsonl", {}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    postgres_sink.check(sink, columns)
    postgres_sink.publish(sink, columns, {0: str(path)}, reasons.__setitem__)
    return reasons


def test_a_new_table_of_flat_answers_has_a_typed_column_per_field_and_no_other(tmp_path, client):
    rows = [{"id": 1, "title_de": "Schuh", "size": 2, "tags": ["a"]}, {"id": 2, "title_de": None}]
    rows[1] |= {"size": None, "tags": None}
    assert publish_translated(tmp_path, rows) == {}
    assert types(client, "products") == {"id": "bigint", "title_de": "text", "size": "bigint", "tags": "jsonb"}
    assert table(client, name="products") == [(1, "Schuh", 2, ["a"]), (2, None, None, None)]


def test_fields_of_answers_are_merged_into_a_table_of_ones_own(tmp_path, client):
    client.execute("CREATE TABLE products (id int PRIMARY KEY, model text, title_de text, size int, tags text[])")
    client.execute("INSERT INTO products VALUES (1, 'runner'), (3, 'walker')")
    rows = [{"id": 1, "title_de": "Schuh", "size": 2, "tags": ["a"]}]
    assert publish_translated(tmp_path, rows) == {}
    assert table(client, name="products") == [(1, "runner", "Schuh", 2, ["a"]), (3, "walker", None, None, None)]


def test_rows_of_ones_own_keep_values_that_no_answer_has_and_a_key_without_a_row_is_a_failed_row(tmp_path, client):
    create = (
        "CREATE TABLE products (id int PRIMARY KEY, title text NOT NULL, title_de text, size int, tags text[])"
    )
    client.execute(create)
    rows = [{"id": number, "title_de": "Schuh", "size": number, "tags": None} for number in (1, 2)]
    with pytest.raises(JobSpecError, match=r'"title" .*not-null constraint.* Nothing was sent'):
        publish_translated(tmp_path, rows)
    client.execute("INSERT INTO products VALUES (1, 'shoe'), (3, 'boot')")
    for _ in range(2):
        reasons = publish_translated(tmp_path, rows)
        assert [*reasons] == [1]
        assert reasons[1].endswith("Give the column a default, or the table a row with this key.")
        expected = [(1, "shoe", "Schuh", 1, None), (3, "boot", None, None, None)]
        assert table(client, name="products") == expected


def test_a_table_of_ones_own_gets_the_details_that_it_has_columns_for(start, client, caplog):
    client.execute("CREATE TABLE answers (id int PRIMARY KEY, answer text, origin text, llmbeam_model text)")
    with caplog.at_level("INFO"):
        start(rows_of(2))
    assert client.execute("SELECT id, origin, llmbeam_model FROM answers ORDER BY id").fetchall() == [
        (0, None, "echo"),
        (1, None, "echo"),
    ]
    assert "Table 'answers' has no columns 'llmbeam_origin', 'llmbeam_fingerprint', " in caplog.text


@pytest.fixture
def embed(start):
    """Returns a function that embeds rows into `answers`, as vectors of pgvector."""

    def embedded(rows, dimensions=None, **sink):
        sink = {"type": "postgres", "table": "answers", "vector_type": "vector", **sink}
        return start(rows, sink=sink, task="embed", embedding={"dimensions": dimensions})

    return embedded


@pytest.fixture
def pgvector(client):
    """The extension of pgvector, which an installed server may lack."""
    if not client.execute("SELECT FROM pg_available_extensions WHERE name = 'vector'").rowcount:
        pytest.skip("this PostgreSQL has no pgvector")
    client.execute("CREATE EXTENSION vector")


@pytest.mark.parametrize("dimensions", [None, 16])
def test_vectors_are_searched_by_meaning_in_their_column(embed, client, pgvector, dimensions):
    embed([row | {"lang": "de"} for row in rows_of(20)], dimensions, passthrough=["lang"], details=False)
    typed = "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'answers'::regclass"
    assert client.execute(f"{typed} AND attname = 'answer'").fetchall() == [(f"vector({dimensions or 8})",)]
    ((asked,),) = client.execute("SELECT answer::text FROM answers WHERE id = 7").fetchall()
    nearest = "SELECT id, lang FROM answers ORDER BY answer <=> %s::vector LIMIT 1"
    assert client.execute(nearest, (asked,)).fetchall() == [(7, "de")]
    embed(rows_of(20), dimensions, details=False)
    assert len(table(client)) == 20, "the same vectors again change nothing"


def test_without_the_extension_the_error_says_how_to_create_it_before_anything_is_sent(embed, client):
    with pytest.raises(JobSpecError) as refused:
        embed(rows_of(3))
    assert 'type "vector" does not exist (42704)' in str(refused.value)
    assert "as a user who may: `CREATE EXTENSION vector`. Nothing was sent or billed." in str(refused.value)


def test_a_column_of_vectors_of_another_length_is_refused_before_anything_is_sent(embed, client, pgvector):
    client.execute("CREATE TABLE answers (id int PRIMARY KEY, answer vector(8))")
    with pytest.raises(JobSpecError, match=r"expected 8 dimensions, not 16 in column answer .*Nothing was sent"):
        embed(rows_of(3), 16, details=False)
    embed(rows_of(3), 8, details=False)
    assert len(table(client)) == 3


def test_what_parameters_of_the_answer_add_has_columns_of_its_own(tmp_path, client):
    columns = OutputColumns(
        key=("id",), after_answer=("llmbeam_citations", "llmbeam_mean_logprob", "llmbeam_reasoning")
    )
    path = tmp_path / "records.jsonl"
    cited = [{"uri": "https://example.com", "title": "example.com", "texts": ["a"]}]
    path.write_text(
        json.dumps(record(llmbeam_citations=cited, llmbeam_mean_logprob=-0.5, llmbeam_reasoning="a\0b")) + "\n"
    )
    postgres_sink.publish(SINK, columns, {0: str(path)}, refuse_none)
    query = "SELECT llmbeam_citations, llmbeam_mean_logprob, llmbeam_reasoning FROM answers"
    ((found, probability, reasoning),) = client.execute(query).fetchall()
    assert (json.loads(found), probability, reasoning) == (cited, -0.5, "a\ufffdb")
