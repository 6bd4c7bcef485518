"""Rows of SQL databases: staged once, and read with the types that the database has."""

from __future__ import annotations

import io
import logging
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

import psycopg
import pytest

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError
from airflow_provider_llmbeam.hooks.sql import DeclaredCursor, open_query
from airflow_provider_llmbeam.hooks.storage import ObjectStorage
from airflow_provider_llmbeam.jobs import stage as module
from airflow_provider_llmbeam.jobs.stage import encode_column, stage_rows, stage_sample
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.pipeline.measure.portions import read_source
from airflow_provider_llmbeam.pipeline.prompt_of_row import RowPrompts
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.plain_values import plain_row
from airflow_provider_llmbeam.spec.protocol.stage import TYPED
from airflow_provider_llmbeam.spec.typed_values import decode_typed
from tests.pipeline.conftest import read_lines

LOG = logging.getLogger(__name__)


@pytest.fixture
def sqlite(tmp_path, add_connection):
    """A SQLite database, as the connection `warehouse`."""
    add_connection("warehouse", "sqlite", str(tmp_path / "warehouse.db"))
    with closing(sqlite3.connect(tmp_path / "warehouse.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous=OFF")
        yield connection


@pytest.fixture
def postgresql(database, add_connection):
    """A PostgreSQL database, as the connection `warehouse`."""
    add_connection("warehouse", "postgres", database)
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def job(tmp_path):
    """Returns a function that makes the job of a query."""

    def made(query, **changes):
        source = {"type": "sql", "conn_id": "warehouse", "query": query, "key": "id"} | changes
        return JobSpec.parse(
            {
                "name": "job",
                "source": source,
                "prompt": "{{ row }}",
                "model": "echo",
                "sink": str(tmp_path / "out"),
                "state_uri": str(tmp_path / "state"),
                "airflow_run": {"dag_id": "d", "task_id": "t", "run_id": "r"},
            }
        )

    return made


def rows_of(spec):
    """Stages the rows of a job, and reads them as it does."""
    stage_rows(spec, ObjectStorage(), LOG)
    portions = read_source(spec, RowPrompts(spec), "").portions()
    return [plain_row(row) for portion in portions for row in portion.rows]


def answered(directory):
    """Returns the keys of the answers of a job."""
    found = directory.glob("out/answers-*.jsonl")
    return sorted(answer["id"] for path in found for answer in read_lines(path))


POSTGRES_TYPES = {
    "NULL::text": None,
    "true": True,
    "9223372036854775807": 2**63 - 1,
    "10::numeric(38, 0) ^ 20": Decimal(10) ** 20,
    "1.5::float8": 1.5,
    "'Grüße, 東京 🦄'::text": "Grüße, 東京 🦄",
    "1.50::numeric(10, 2)": Decimal("1.50"),
    "'NaN'::numeric": None,
    "date '2026-01-31'": date(2026, 1, 31),
    "timestamp '2026-01-31 12:30:00.000001'": datetime.fromisoformat("2026-01-31 12:30:00.000001"),
    "timestamptz '2026-07-31 12:30+02'": datetime(2026, 7, 31, 10, 30, tzinfo=UTC),
    "time '12:30:00.5'": time(12, 30, 0, 500_000),
    "interval '1 day 00:00:01'": timedelta(days=1, seconds=1),
    "'6f9619ff-8b86-d011-b42d-00cf4fc964ff'::uuid": UUID("6f9619ff-8b86-d011-b42d-00cf4fc964ff"),
    "'\\xff00'::bytea": b"\xff\x00",
    "'text'::bytea": "text",
    """'{"a": [1, null, "b"], "c": {"d": 1.5}}'::jsonb""": {"a": [1, None, "b"], "c": {"d": 1.5}},
    "ARRAY[1.5, 1.25]::numeric[]": [Decimal("1.5"), Decimal("1.25")],
    "'10.0.0.1'::inet": "10.0.0.1",
    "int4range(1, 3)": "[1, 3)",
}


def test_each_type_of_postgresql_is_read_as_it_is_stored(postgresql, job):
    columns = ", ".join(f"{expression} AS c{number}" for number, expression in enumerate(POSTGRES_TYPES))
    (row,) = rows_of(job(f"SELECT 1 AS id, {columns}"))
    del row["id"]
    assert dict(zip(POSTGRES_TYPES, row.values(), strict=True)) == POSTGRES_TYPES
    types = [*map(type, row.values())]
    assert [kind for kind in map(type, POSTGRES_TYPES.values()) if kind is not str] == [
        kind for kind in types if not issubclass(kind, str)
    ]
    assert str(row["c6"]) == "1.50"


#: With PyMySQL; JSON is text there, and a TIME may be longer than a day.
MYSQL_TYPES = {
    "NULL": None,
    "true": 1,
    "CAST(18446744073709551615 AS UNSIGNED)": 2**64 - 1,
    "CAST(1.50 AS DECIMAL(10, 2))": Decimal("1.50"),
    "1.5e0": 1.5,
    "'Grüße, 東京 🦄'": "Grüße, 東京 🦄",
    "DATE '2026-01-31'": date(2026, 1, 31),
    "TIMESTAMP '2026-01-31 12:30:00.000001'": datetime.fromisoformat("2026-01-31 12:30:00.000001"),
    "TIME '26:30:00'": timedelta(hours=26, minutes=30),
    "x'ff00'": b"\xff\x00",
    """JSON_OBJECT('a', 1)""": '{"a": 1}',
}


@pytest.mark.full
@pytest.mark.skipif(not os.environ.get("LLMBEAM_TESTS_MYSQL"), reason="a server is named in LLMBEAM_TESTS_MYSQL")
def test_each_type_of_mysql_is_read_as_it_is_stored(add_connection, job):
    """The server is MySQL or MariaDB, e.g. `mysql://root@127.0.0.1:3306/test`."""
    add_connection("warehouse", "mysql", os.environ["LLMBEAM_TESTS_MYSQL"])
    columns = ", ".join(f"{expression} AS c{number}" for number, expression in enumerate(MYSQL_TYPES))
    (row,) = rows_of(job(f"SELECT 1 AS id, {columns} WHERE 1 = %(one)s", parameters={"one": 1}))
    del row["id"]
    assert dict(zip(MYSQL_TYPES, row.values(), strict=True)) == MYSQL_TYPES


@pytest.mark.full
@pytest.mark.skipif(not os.environ.get("LLMBEAM_TESTS_MYSQL"), reason="a server is named in LLMBEAM_TESTS_MYSQL")
def test_a_sample_of_mysql_does_not_read_the_rest(add_connection, job, monkeypatch):
    """Of the trillion rows; they are not counted here either."""
    add_connection("warehouse", "mysql", os.environ["LLMBEAM_TESTS_MYSQL"])
    monkeypatch.setattr(module, "count_rows", lambda _: 10**12)
    spec = job("SELECT a.seq AS id FROM seq_1_to_1000000 a, seq_1_to_1000000 b")
    with stage_sample(spec, ObjectStorage(), LOG) as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert len([*read_source(spec, RowPrompts(spec), "").rows()]) == 10_100


def test_a_lob_is_read_while_its_connection_is_open():
    column = encode_column([None, io.StringIO("text"), io.BytesIO(b"\xff")])
    assert [None if cell is None else decode_typed(cell[TYPED]) for cell in column.to_pylist()] == [
        None,
        "text",
        b"\xff",
    ]


def test_each_value_of_sqlite_whose_columns_have_no_type_is_read_as_it_is_stored(sqlite, job):
    values = [None, 1, 2**62, 1.5, "text", b"\xff", "", "1"]
    sqlite.execute("CREATE TABLE t (id, value)")
    sqlite.executemany("INSERT INTO t VALUES (?, ?)", enumerate(values))
    assert [row["value"] for row in rows_of(job("SELECT id, value FROM t ORDER BY id"))] == values


def test_numbers_of_several_scales_keep_theirs(postgresql, job):
    """Each renders as it is stored, whatever the other rows of its file are."""
    postgresql.execute("CREATE TABLE t (id int, price numeric)")
    prices = ["1.5", "1.25", "-0.000001", "12345678901234567890123456789012345678901234567890.1", "7", "NaN"]
    for number, price in enumerate(prices):
        postgresql.execute("INSERT INTO t VALUES (%s, %s::numeric)", (number, price))
    found = [row["price"] for row in rows_of(job("SELECT * FROM t WHERE price <> 'NaN' ORDER BY id"))]
    assert [*map(str, found)] == prices[:-1]


def test_a_job_answers_each_row_of_its_query_and_deletes_the_staged_ones(sqlite, job, tmp_path):
    sqlite.execute("CREATE TABLE t (id INTEGER, text TEXT)")
    sqlite.executemany("INSERT INTO t VALUES (?, ?)", ((number, f"row {number}") for number in range(250)))
    spec = job("SELECT * FROM t WHERE id >= :first ;", parameters={"first": 50})
    stage_rows(spec, ObjectStorage(), LOG)
    assert storage.match(f"{spec.paths.export_uri}**")
    manifest = run(spec)
    assert manifest["rows"] == {"read": 200, "answered": 200, "dead_letter": 0, "skipped": 0}
    assert answered(tmp_path) == [*range(50, 250)]
    assert not storage.match(f"{spec.paths.export_uri}**")


def test_a_retry_reads_the_rows_that_the_first_try_has_staged(sqlite, job):
    sqlite.execute("CREATE TABLE t (id INTEGER)")
    sqlite.execute("INSERT INTO t VALUES (1)")
    assert rows_of(job("SELECT * FROM t")) == [{"id": 1}]
    sqlite.execute("INSERT INTO t VALUES (2)")
    assert rows_of(job("SELECT * FROM t")) == [{"id": 1}]
    others = [
        job("SELECT * FROM t "),
        job("SELECT * FROM t", parameters=[]),
        job("SELECT * FROM t").model_copy(update={"airflow_run": None}),
    ]
    for other in others:
        assert rows_of(other) == [{"id": 1}, {"id": 2}]


def test_no_row_is_staged_below_a_link(sqlite, job, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "job").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(JobSpecError, match="is a link to"):
        stage_rows(job("SELECT 1 AS id"), ObjectStorage(), LOG)
    assert not [*(tmp_path / "elsewhere").iterdir()]


def test_staged_rows_are_read_by_their_owner_alone(sqlite, job, tmp_path):
    stage_rows(job("SELECT 1 AS id"), ObjectStorage(), LOG)
    assert (tmp_path / "state" / "job").stat().st_mode & 0o077 == 0


def test_a_stage_that_has_lost_a_file_is_made_again(sqlite, job):
    """E.g. by a rule of the bucket that deletes what is older than a day."""
    sqlite.execute("CREATE TABLE t (id INTEGER)")
    sqlite.executemany("INSERT INTO t VALUES (?)", ((row,) for row in range(2_000)))
    spec = job("SELECT * FROM t")
    assert len(rows_of(spec)) == 2_000
    storage.delete(storage.match(f"{spec.paths.export_uri}*.parquet"))
    sqlite.execute("DELETE FROM t WHERE id > 0")
    assert rows_of(spec) == [{"id": 0}]


def test_without_staged_rows_a_job_names_the_connection_and_what_to_do(job):
    with pytest.raises(JobSpecError, match="'warehouse' is a connection of Airflow, and no task has staged"):
        run(job("SELECT 1 AS id"))


def test_a_sample_has_the_first_rows_and_the_number_of_all_and_is_deleted(sqlite, job, monkeypatch, caplog):
    monkeypatch.setattr(module, "SAMPLE_ROWS", 100)
    sqlite.execute("CREATE TABLE t (id INTEGER)")
    sqlite.executemany("INSERT INTO t VALUES (?)", ((number,) for number in range(1000)))
    spec = job("SELECT * FROM t ORDER BY id -- the newest ones")
    with stage_sample(spec, ObjectStorage(), LOG) as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        reading = read_source(spec, RowPrompts(spec), "")
        assert [row["id"] for row in reading.rows()] == [*range(100)]
        assert reading.scale == 10
    assert "the first 100 of 1,000 rows of `source.query`, in its order, which is no random sample" in caplog.text
    assert not storage.match(f"{spec.paths.export_uri}**")


@pytest.mark.parametrize("rows", [0, 1, 99, 100, 101])
def test_a_sample_of_a_small_query_is_all_of_it_and_counts_nothing(sqlite, job, monkeypatch, rows):
    monkeypatch.setattr(module, "count_rows", None)
    monkeypatch.setattr(module, "SAMPLE_ROWS", 1000)
    sqlite.execute("CREATE TABLE t (id INTEGER)")
    sqlite.executemany("INSERT INTO t VALUES (?)", ((number,) for number in range(rows)))
    spec = job("SELECT * FROM t")
    with stage_sample(spec, ObjectStorage(), LOG) as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        reading = read_source(spec, RowPrompts(spec), "")
        assert len([*reading.rows()]) == rows
        assert not reading.is_partial


@pytest.mark.parametrize(
    ("query", "changes", "sentence"),
    [
        ("SELEC 1", {}, 'SyntaxError: syntax error at or near "SELEC"'),
        ("SELECT 1 AS id FROM missing", {}, 'UndefinedTable: relation "missing" does not exist'),
        ("SELECT 1 AS id, 2 AS id", {}, "`source.query`: it has two columns 'id'"),
        ('SELECT 1 AS "ID"', {}, "`source.key`: the query has no column 'id'; did you mean `ID`?"),
        ("SELECT 1 AS id", {"conn_id": "nowhere"}, "`source.conn_id` 'nowhere': there is no such connection"),
        (
            "SELECT 1 AS id",
            {"conn_id": "web"},
            "`source.conn_id` 'web': its hook cannot be made: Unknown hook type",
        ),
        ("DROP TABLE missing", {}, 'SyntaxError: syntax error at or near "DROP"'),
    ],
)
def test_what_another_try_would_repeat_is_refused_before_anything_is_sent(
    postgresql, job, add_connection, query, changes, sentence
):
    add_connection("web", "http", "localhost")
    with pytest.raises(JobSpecError) as refused:
        stage_rows(job(query, **changes), ObjectStorage(), LOG)
    assert sentence in str(refused.value)
    assert str(refused.value).endswith("Nothing was sent or billed.")


def test_a_database_that_does_not_answer_is_asked_again(job, add_connection):
    add_connection("warehouse", "postgres", "postgresql://me:planted-password@127.0.0.1:1/db")
    with pytest.raises(JobFailedError, match="read through connection 'warehouse': OperationalError") as failed:
        stage_rows(job("SELECT 1 AS id"), ObjectStorage(), LOG)
    assert "planted" not in str(failed.value)


def test_the_hook_has_the_parameters_of_the_source(postgresql, job):
    query = "SELECT 1 AS id, current_setting('application_name') AS name"
    assert rows_of(job(query, hook_params={"application_name": "nightly"})) == [{"id": 1, "name": "nightly"}]


def test_a_declared_cursor_reads_each_row_once(database):
    with psycopg.connect(database) as connection:
        cursor = DeclaredCursor(connection.cursor())
        cursor.execute("SELECT * FROM generate_series(1, 7) AS id")
        fetched = [[row for (row,) in cursor.fetchmany(3)] for _ in range(4)]
        assert [column.name for column in cursor.description] == ["id"]
    assert fetched == [[1, 2, 3], [4, 5, 6], [7], []]


def test_a_query_on_postgresql_is_read_by_a_cursor_that_the_server_keeps(postgresql, job):
    """The driver never holds more rows than it has been asked for."""
    spec = job("SELECT id, repeat('x', 1000) AS text FROM generate_series(1, 3000) AS id")
    with open_query(spec.source) as query:
        batches = query.batches()
        next(batches)
        assert postgresql.execute("SELECT count(*) FROM pg_stat_activity WHERE query ILIKE 'FETCH %'").fetchone()
        assert sum(len(rows) for rows, _ in batches) == 2900


MOMENTS = [(number, moment) for number in range(3) for moment in ("before", "within", "after")]
KILLED = """
import logging, os, signal, sys
import pytest
from airflow_provider_llmbeam.hooks.storage import ObjectStorage
from airflow_provider_llmbeam.jobs import stage
from airflow_provider_llmbeam.spec import JobSpec
from tests.databases import set_hooks

number, moment, written = int(sys.argv[1]), sys.argv[2], []

def write(self, uri, content):
    is_last = len(written) == number
    written.append(uri)
    if is_last and moment == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    whole(self, uri, content[: len(content) // 2] if is_last and moment == "within" else content)
    if is_last:
        os.kill(os.getpid(), signal.SIGKILL)

whole, ObjectStorage.write, stage.PART_ROWS = ObjectStorage.write, write, 100
with pytest.MonkeyPatch.context() as patches:
    set_hooks(patches)
    stage.stage_rows(JobSpec.from_json(sys.stdin.read()), ObjectStorage(), logging.getLogger())
"""


@pytest.mark.promise(1)
@pytest.mark.parametrize(
    ("number", "moment"),
    [pytest.param(*each, marks=() if each == (2, "within") else pytest.mark.full) for each in MOMENTS],
)
def test_a_task_that_is_killed_while_it_stages_loses_no_row_and_has_none_twice(
    sqlite, job, tmp_path, number, moment
):
    """It is killed before, within and after the writing of the first file, the last one and the manifest."""
    sqlite.execute("CREATE TABLE t (id INTEGER)")
    sqlite.executemany("INSERT INTO t VALUES (?)", ((row,) for row in range(250)))
    spec = job("SELECT * FROM t")
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, str(number), moment],
        input=spec.model_dump_json(),
        text=True,
        capture_output=True,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    sqlite.execute("INSERT INTO t VALUES (250)")
    stage_rows(spec, ObjectStorage(), LOG)
    was_staged = (number, moment) == (2, "after")
    manifest = run(spec)
    assert answered(tmp_path) == [*range(250 if was_staged else 251)]
    assert manifest["requests"]["sent"] == manifest["rows"]["read"] == manifest["rows"]["answered"]
    assert not storage.match(f"{spec.paths.export_uri}**")
