from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import requests
from google.api_core.client_options import ClientOptions
from google.api_core.exceptions import BadRequest, Conflict, Forbidden, InternalServerError, NotFound
from google.auth.credentials import AnonymousCredentials
from google.cloud import bigquery, storage
from google.cloud.bigquery import (
    CopyJobConfig,
    ExtractJobConfig,
    LoadJobConfig,
    QueryJobConfig,
    ScalarQueryParameter,
    SchemaField,
)
from llmbeam_sandbox import Fault, ManualClock, Sandbox
from llmbeam_sandbox.bigquery.queries import MINIMUM_BILLED_BYTES

PROJECT = "my-project"
ANSWERS = f"{PROJECT}.llm.answers"
STAGED = f"{PROJECT}.llm.staged"
SCHEMA = [SchemaField("id", "INTEGER", mode="REQUIRED"), SchemaField("text", "STRING")]
MERGE = f"""
MERGE `{ANSWERS}` AS t USING `{STAGED}` AS s ON t.id = s.id
WHEN MATCHED AND t.text != s.text THEN UPDATE SET t.text = s.text
WHEN NOT MATCHED THEN INSERT (id, text) VALUES (s.id, s.text)
"""
WIDE = [
    SchemaField("n", "INTEGER"),
    SchemaField("x", "FLOAT"),
    SchemaField("is_it", "BOOLEAN"),
    SchemaField("price", "NUMERIC"),
    SchemaField("raw", "BYTES"),
    SchemaField("at", "TIMESTAMP"),
    SchemaField("day", "DATE"),
    SchemaField("local", "DATETIME"),
    SchemaField("tags", "STRING", mode="REPEATED"),
    SchemaField("who", "RECORD", fields=[SchemaField("name", "STRING"), SchemaField("age", "INTEGER")]),
    SchemaField("doc", "JSON"),
]
WIDE_ROW = {
    "n": 7,
    "x": 1.5,
    "is_it": True,
    "price": "9.99",
    "raw": "AAE=",
    "at": "2026-01-02T03:04:05.000006Z",
    "day": "2026-01-02",
    "local": "2026-01-02T03:04:05",
    "tags": ["a", "b"],
    "who": {"name": "Ann", "age": 40},
    "doc": {"k": [1]},
}


@pytest.fixture(scope="module")
def cloud() -> Iterator[Sandbox]:
    with Sandbox(buckets=("rows",)) as running:
        yield running


@pytest.fixture
def sandbox(cloud: Sandbox) -> Iterator[Sandbox]:
    cloud.reset()
    yield cloud
    cloud.faults.assert_all_consumed()


def connect(sandbox: Sandbox) -> bigquery.Client:
    options = ClientOptions(api_endpoint=sandbox.authorized_url)
    return bigquery.Client(project=PROJECT, credentials=AnonymousCredentials(), client_options=options)


@pytest.fixture
def client(sandbox: Sandbox) -> Iterator[bigquery.Client]:
    made = connect(sandbox)
    made.create_dataset("llm")
    yield made
    made.close()


@pytest.fixture
def bucket(sandbox: Sandbox) -> Iterator[storage.Bucket]:
    made = storage.Client(PROJECT, AnonymousCredentials(), client_options={"api_endpoint": sandbox.authorized_url})
    yield made.bucket("rows")
    made.close()


def load(client: bigquery.Client, table: str, rows: list[dict[str, Any]], **config: Any) -> bigquery.LoadJob:
    job_config = LoadJobConfig(**{"schema": SCHEMA, **config})
    return client.load_table_from_json(rows, table, job_config=job_config)


def rows_of(client: bigquery.Client, table: str = ANSWERS) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in client.list_rows(table))


def stage(client: bigquery.Client) -> None:
    load(client, ANSWERS, [{"id": 1, "text": "one"}, {"id": 2, "text": "two"}]).result()
    load(client, STAGED, [{"id": 2, "text": "TWO"}, {"id": 3, "text": "three"}]).result()


# Datasets and tables


def test_datasets_are_created_listed_and_deleted(client: bigquery.Client) -> None:
    made = client.create_dataset("second")
    assert made.location == "US"
    assert [found.dataset_id for found in client.list_datasets()] == ["llm", "second"]
    with pytest.raises(Conflict, match="Already Exists: Dataset my-project:second"):
        client.create_dataset("second")
    client.create_table(bigquery.Table(f"{PROJECT}.second.t", schema=SCHEMA))
    with pytest.raises(BadRequest, match="Dataset my-project:second is still in use"):
        client.delete_dataset("second")
    client.delete_dataset("second", delete_contents=True)
    with pytest.raises(NotFound, match="Not found: Dataset my-project:second"):
        client.get_dataset("second")


def test_tables_are_created_updated_listed_and_deleted(client: bigquery.Client) -> None:
    made = client.create_table(bigquery.Table(ANSWERS, schema=SCHEMA))
    assert (made.num_rows, [one.name for one in made.schema]) == (0, ["id", "text"])
    with pytest.raises(Conflict, match=r"Already Exists: Table my-project:llm\.answers"):
        client.create_table(made)
    assert client.create_table(made, exists_ok=True).table_id == "answers"
    made.labels, made.schema = {"run": "7"}, [*SCHEMA, SchemaField("model", "STRING")]
    patched = client.update_table(made, ["labels", "schema"])
    assert (patched.labels, len(patched.schema)) == ({"run": "7"}, 3)
    assert [found.table_id for found in client.list_tables("llm")] == ["answers"]
    client.delete_table(ANSWERS)
    with pytest.raises(NotFound, match=r"Not found: Table my-project:llm\.answers"):
        client.get_table(ANSWERS)


def test_a_table_is_deleted_when_it_expires() -> None:
    clock = ManualClock()
    with Sandbox(clock=clock) as sandbox:
        client = connect(sandbox)
        client.create_dataset("llm")
        table = bigquery.Table(ANSWERS, schema=SCHEMA)
        table.expires = datetime.fromtimestamp(clock(), UTC) + timedelta(hours=1)
        client.create_table(table)
        clock.advance(3599)
        client.get_table(ANSWERS)
        clock.advance(2)
        with pytest.raises(NotFound):
            client.get_table(ANSWERS)


def test_a_view_is_queried_and_not_extracted(client: bigquery.Client) -> None:
    load(client, ANSWERS, [{"id": 1, "text": "one"}, {"id": 2, "text": "two"}]).result()
    view = bigquery.Table(f"{PROJECT}.llm.ones")
    view.view_query = f"SELECT text FROM `{ANSWERS}` WHERE id = 1"
    made = client.create_table(view)
    assert (made.table_type, [one.name for one in made.schema], made.num_rows) == ("VIEW", ["text"], None)
    assert [row.text for row in client.query_and_wait("SELECT * FROM llm.ones")] == ["one"]
    with pytest.raises(BadRequest, match="is not allowed for this operation because of its type"):
        client.extract_table(view, "gs://rows/out/*.avro").result()
    client.delete_table(view)
    with pytest.raises(NotFound):
        client.get_table(view)


# Queries


def test_values_of_each_type_arrive_unchanged(client: bigquery.Client) -> None:
    load(client, ANSWERS, [WIDE_ROW, {}], schema=WIDE).result()
    expected = {
        "n": 7,
        "x": 1.5,
        "is_it": True,
        "price": Decimal("9.99"),
        "raw": b"\x00\x01",
        "at": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        "day": date(2026, 1, 2),
        "local": datetime(2026, 1, 2, 3, 4, 5),  # noqa: DTZ001 - a DATETIME has no zone
        "tags": ["a", "b"],
        "who": {"name": "Ann", "age": 40},
        "doc": {"k": [1]},
    }
    for rows in (client.list_rows(ANSWERS), client.query_and_wait(f"SELECT * FROM `{ANSWERS}`")):
        found = [dict(row) for row in rows]
        assert found[0] == expected
        assert found[1] == {name: [] if name == "tags" else None for name in expected}


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT SAFE_DIVIDE(1, 0) AS a, 7 / 2 AS b", [(None, 3.5)]),
        ("SELECT COUNT(*), SUM(id), ARRAY_AGG(text ORDER BY id) FROM llm.answers", [(2, 3, ["one", "two"])]),
        ("WITH c AS (SELECT id FROM `my-project`.llm.answers) SELECT MAX(c.id) FROM c", [(2,)]),
        ("SELECT TIMESTAMP '2026-01-02 00:00:00+00'", [(datetime(2026, 1, 2, tzinfo=UTC),)]),
        ("SELECT STRUCT(1 AS a, 'x' AS b), [1, 2]", [({"a": 1, "b": "x"}, [1, 2])]),
        ("SELECT x.id FROM UNNEST([STRUCT(1 AS id), STRUCT(2)]) AS x ORDER BY 1 DESC", [(2,), (1,)]),
        ("SELECT text FROM llm.answers WHERE STARTS_WITH(text, 't')", [("two",)]),
        ("SELECT TO_JSON_STRING(STRUCT(1 AS a))", [('{"a":1}',)]),
        ("SELECT FORMAT_DATE('%Y', DATE '2026-05-01')", [("2026",)]),
        ("SELECT SAFE.PARSE_JSON('no JSON') IS NULL, SAFE.PARSE_JSON('[1]') IS NULL", [(True, False)]),
    ],
)
def test_a_query_in_googlesql_is_answered(client: bigquery.Client, sql: str, expected: list[Any]) -> None:
    load(client, ANSWERS, [{"id": 1, "text": "one"}, {"id": 2, "text": "two"}]).result()
    assert [tuple(row.values()) for row in client.query_and_wait(sql)] == expected
    assert [tuple(row.values()) for row in client.query(sql).result()] == expected


def test_parameters_are_values_not_text(client: bigquery.Client) -> None:
    stage(client)
    parameters = [
        ScalarQueryParameter("text", "STRING", "two'; DROP TABLE x"),
        bigquery.ArrayQueryParameter("ids", "INT64", [1, 2]),
        ScalarQueryParameter("at", "TIMESTAMP", datetime(2026, 1, 2, tzinfo=UTC)),
        ScalarQueryParameter("nothing", "STRING", None),
    ]
    sql = f"SELECT id, @text, @at, @nothing FROM `{ANSWERS}` WHERE id IN UNNEST(@ids) ORDER BY id"
    found = client.query_and_wait(sql, job_config=QueryJobConfig(query_parameters=parameters))
    at = datetime(2026, 1, 2, tzinfo=UTC)
    assert [tuple(row.values()) for row in found] == [(n, "two'; DROP TABLE x", at, None) for n in (1, 2)]
    positional = QueryJobConfig(query_parameters=[ScalarQueryParameter(None, "INT64", n) for n in (5, 6)])
    assert [tuple(row.values()) for row in client.query_and_wait("SELECT ?, ?", job_config=positional)] == [(5, 6)]


def test_results_come_in_pages_in_order(client: bigquery.Client) -> None:
    sql = "SELECT n FROM UNNEST(GENERATE_ARRAY(1, 2500)) AS n ORDER BY n"
    rows = client.query(sql).result(page_size=1000)
    assert [page.num_items for page in rows.pages] == [1000, 1000, 500]
    assert [row.n for row in client.query_and_wait(sql, page_size=700)] == list(range(1, 2501))


def test_a_query_result_is_written_to_its_destination(client: bigquery.Client) -> None:
    def write(disposition: str, value: int) -> None:
        config = QueryJobConfig(destination=ANSWERS, write_disposition=disposition)
        client.query(f"SELECT {value} AS id, 'x' AS text", job_config=config).result()

    write("WRITE_EMPTY", 1)
    with pytest.raises(Conflict, match=r"Already Exists: Table my-project:llm\.answers"):
        write("WRITE_EMPTY", 2)
    write("WRITE_APPEND", 3)
    assert rows_of(client) == [(1, "x"), (3, "x")]
    write("WRITE_TRUNCATE", 4)
    assert rows_of(client) == [(4, "x")]
    config = QueryJobConfig(destination=ANSWERS, write_disposition="WRITE_APPEND")
    with pytest.raises(BadRequest, match=r"Cannot add fields \(field: more\)"):
        client.query("SELECT 1 AS id, 'x' AS text, 2 AS more", job_config=config).result()
    config.schema_update_options = ["ALLOW_FIELD_ADDITION"]
    client.query("SELECT 5 AS id, 'x' AS text, 2 AS more", job_config=config).result()
    assert [tuple(row.values()) for row in client.list_rows(ANSWERS)] == [(4, "x", None), (5, "x", 2)]


def test_columns_are_added_by_sql_and_are_null_in_the_rows_there(
    sandbox: Sandbox, client: bigquery.Client
) -> None:
    stage(client)
    add = f"ALTER TABLE `{ANSWERS}` ADD COLUMN `title_de` STRING, ADD COLUMN tags ARRAY<STRUCT<id INT64>>"
    client.query(add, job_config=QueryJobConfig(dry_run=True))
    assert len(client.get_table(ANSWERS).schema) == 2
    client.query_and_wait(add)
    added = client.get_table(ANSWERS).schema[2:]
    assert [(one.name, one.field_type, one.mode) for one in added] == [
        ("title_de", "STRING", "NULLABLE"),
        ("tags", "RECORD", "REPEATED"),
    ]
    assert [row["title_de"] for row in client.list_rows(ANSWERS)] == [None, None]
    with pytest.raises(BadRequest, match="Column already exists: title_de"):
        client.query_and_wait(add)
    client.query_and_wait(f"ALTER TABLE `{ANSWERS}` ADD COLUMN IF NOT EXISTS Title_DE STRING")
    with pytest.raises(BadRequest, match="required column"):
        client.query_and_wait(f"ALTER TABLE `{ANSWERS}` ADD COLUMN needed STRING NOT NULL")
    assert len(client.get_table(ANSWERS).schema) == 4
    assert sandbox.stats()["bigquery_bytes_billed"] == 0


def test_a_table_is_made_replaced_and_dropped_by_sql(client: bigquery.Client) -> None:
    client.query_and_wait(f"CREATE TABLE `{ANSWERS}` AS SELECT 1 AS id, 'a' AS text")
    with pytest.raises(Conflict, match="Already Exists: Table"):
        client.query_and_wait(f"CREATE TABLE `{ANSWERS}` AS SELECT 2 AS id")
    client.query_and_wait(f"CREATE TABLE IF NOT EXISTS `{ANSWERS}` AS SELECT 2 AS id")
    assert rows_of(client) == [(1, "a")]
    client.query_and_wait(
        f"CREATE OR REPLACE TABLE `{ANSWERS}` (id INT64 NOT NULL, tags ARRAY<STRING>) OPTIONS (description = 'x')"
    )
    assert [(one.field_type, one.mode) for one in client.get_table(ANSWERS).schema] == [
        ("INTEGER", "REQUIRED"),
        ("STRING", "REPEATED"),
    ]
    client.query_and_wait(f"DROP TABLE `{ANSWERS}`")
    client.query_and_wait(f"DROP TABLE IF EXISTS `{ANSWERS}`")
    with pytest.raises(NotFound):
        client.get_table(ANSWERS)


@pytest.mark.parametrize(
    ("sql", "error", "message"),
    [
        ("SELEC 1", BadRequest, "Syntax error: Unexpected"),
        ("SELECT nope FROM llm.answers", BadRequest, r"Unrecognized name: nope at \[1:8\]"),
        ("SELECT nope(1)", BadRequest, "Function not found: nope"),
        (
            "SELECT 1 FROM llm.gone",
            NotFound,
            r"Not found: Table my-project:llm\.gone was not found in location US",
        ),
        ("SELECT 1 FROM gone.t", NotFound, "Not found: Dataset my-project:gone"),
        ("SELECT 1 FROM t", BadRequest, "must be qualified with a dataset"),
        ("DELETE FROM llm.answers", BadRequest, "must have a WHERE clause"),
        ("SELECT 1; SELECT 2", BadRequest, "one statement at a time"),
        ("ALTER TABLE llm.answers DROP COLUMN id", BadRequest, "does not emulate this statement: ALTER"),
        ("CALL x()", BadRequest, "does not emulate this statement: CALL"),
    ],
)
@pytest.mark.parametrize("is_dry", [False, True])
def test_an_invalid_query_is_refused_with_the_message_of_bigquery(
    client: bigquery.Client, sql: str, error: type[Exception], message: str, is_dry: bool
) -> None:
    client.create_table(bigquery.Table(ANSWERS, schema=SCHEMA))
    with pytest.raises(error, match=message):
        client.query(sql, job_config=QueryJobConfig(dry_run=is_dry)).result(job_retry=None)


def test_a_dry_run_reports_the_bytes_to_read_and_runs_nothing(sandbox: Sandbox, client: bigquery.Client) -> None:
    stage(client)
    dry = client.query(f"SELECT id FROM `{ANSWERS}`", job_config=QueryJobConfig(dry_run=True))
    assert (dry.total_bytes_processed, [one.name for one in dry.schema]) == (2 * 8, ["id"])
    both = client.query(f"SELECT * FROM `{ANSWERS}`", job_config=QueryJobConfig(dry_run=True))
    assert both.total_bytes_processed == 2 * 8 + 2 * (2 + 3)
    client.query(MERGE, job_config=QueryJobConfig(dry_run=True))
    assert rows_of(client) == [(1, "one"), (2, "two")]
    assert sandbox.stats()["bigquery_bytes_billed"] == 0


def test_a_query_over_its_limit_is_not_run(sandbox: Sandbox, client: bigquery.Client) -> None:
    stage(client)
    config = QueryJobConfig(maximum_bytes_billed=1000)
    with pytest.raises(BadRequest, match=r"Query exceeded limit for bytes billed: 1000\. 10485760"):
        client.query_and_wait(f"SELECT * FROM `{ANSWERS}`", job_config=config)
    assert client.query(f"SELECT * FROM `{ANSWERS}`").result().total_rows == 2
    assert sandbox.stats()["bigquery_bytes_billed"] == MINIMUM_BILLED_BYTES


# MERGE


def test_a_merge_updates_and_inserts_rows_and_reports_the_counts(client: bigquery.Client) -> None:
    stage(client)
    job = client.query(MERGE)
    job.result()
    assert job.num_dml_affected_rows == 2
    assert (job.dml_stats.inserted_row_count, job.dml_stats.updated_row_count) == (1, 1)
    assert rows_of(client) == [(1, "one"), (2, "TWO"), (3, "three")]
    again = client.query(MERGE)
    again.result()
    assert again.num_dml_affected_rows == 0


def test_a_merge_may_insert_whole_rows_and_delete(client: bigquery.Client) -> None:
    stage(client)
    sql = f"MERGE `{ANSWERS}` t USING `{STAGED}` s ON t.id = s.id WHEN NOT MATCHED THEN INSERT ROW"
    assert client.query_and_wait(sql).num_dml_affected_rows == 1
    client.query_and_wait(
        f"MERGE `{ANSWERS}` t USING UNNEST([STRUCT(3 AS id, 'x' AS text), (9, 'nine')]) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET text = s.text WHEN NOT MATCHED BY SOURCE AND t.id < 3 THEN DELETE"
    )
    assert rows_of(client) == [(3, "x")]


def test_a_merge_that_matches_a_row_twice_is_refused(client: bigquery.Client) -> None:
    stage(client)
    load(client, STAGED, [{"id": 2, "text": "again"}], write_disposition="WRITE_APPEND").result()
    with pytest.raises(BadRequest, match="must match at most one source row for each target row"):
        client.query(MERGE).result(job_retry=None)
    assert rows_of(client) == [(1, "one"), (2, "two")]


def test_an_aborted_merge_leaves_the_target_unchanged(sandbox: Sandbox, client: bigquery.Client) -> None:
    stage(client)
    sandbox.faults.when("bigquery.jobs.insert", "MERGE", Fault(kind="abort"), times=1)
    job = client.query(MERGE, job_id="merge-1", job_retry=None)
    with pytest.raises(InternalServerError, match="Error encountered during execution"):
        job.result(retry=None)
    assert job.error_result["reason"] == "backendError"
    assert rows_of(client) == [(1, "one"), (2, "two")]
    assert sandbox.stats()["bigquery_bytes_billed"] == 0
    client.query(MERGE, job_id="merge-2", job_retry=None).result()
    assert rows_of(client) == [(1, "one"), (2, "TWO"), (3, "three")]


def test_dml_counts_its_rows(client: bigquery.Client) -> None:
    stage(client)
    counts = [
        client.query_and_wait(sql.format(ANSWERS)).num_dml_affected_rows
        for sql in (
            "INSERT INTO `{}` (id, text) VALUES (8, 'h'), (9, 'i')",
            "UPDATE `{}` AS t SET t.text = 'x' WHERE id > 7",
            "DELETE FROM `{}` WHERE id IN (1, 2, 8)",
        )
    ]
    assert counts == [2, 2, 3]
    client.query_and_wait(f"TRUNCATE TABLE `{ANSWERS}`")
    assert rows_of(client) == []


# Jobs


def test_a_job_id_can_be_used_only_once(sandbox: Sandbox, client: bigquery.Client) -> None:
    stage(client)
    client.query(MERGE, job_id="merge-of-run-7", job_retry=None).result()
    reference = {"projectId": PROJECT, "jobId": "merge-of-run-7"}
    body = {"jobReference": reference, "configuration": {"query": {"query": MERGE, "useLegacySql": False}}}
    answer = requests.post(f"{sandbox.authorized_url}/bigquery/v2/projects/{PROJECT}/jobs", json=body, timeout=60)
    assert (answer.status_code, answer.json()["error"]["errors"][0]["reason"]) == (409, "duplicate")
    assert "Already Exists: Job my-project:US.merge-of-run-7" in answer.text
    found = client.get_job("merge-of-run-7")
    assert (found.state, found.num_dml_affected_rows) == ("DONE", 2)
    with pytest.raises(NotFound, match=r"Not found: Job my-project:US\.other"):
        client.get_job("other")
    assert [job.job_id for job in client.list_jobs(max_results=1)] == ["merge-of-run-7"]


def test_a_job_takes_its_time_and_can_be_cancelled() -> None:
    clock = ManualClock()
    with Sandbox(clock=clock, bigquery_job_seconds=60) as sandbox:
        client = connect(sandbox)
        client.create_dataset("llm")
        first = load(client, ANSWERS, [{"id": 1}])
        second = client.query(f"CREATE TABLE `{STAGED}` AS SELECT 1 AS id", job_id="late", job_retry=None)
        assert (first.state, second.state, client.get_job("late").running()) == ("RUNNING", "RUNNING", True)
        assert client.cancel_job("late").state == "DONE"
        clock.advance(61)
        first.result()
        assert client.get_table(ANSWERS).num_rows == 1
        with pytest.raises(NotFound):
            client.get_table(STAGED)
        assert client.get_job("late").error_result["reason"] == "stopped"


# Loads


@pytest.mark.parametrize("form", ["NEWLINE_DELIMITED_JSON", "PARQUET", "AVRO"])
def test_an_extracted_table_is_loaded_again(client: bigquery.Client, bucket: storage.Bucket, form: str) -> None:
    load(client, ANSWERS, [WIDE_ROW, {}], schema=WIDE).result()
    config = ExtractJobConfig(destination_format=form, use_avro_logical_types=True)
    extract = client.extract_table(ANSWERS, "gs://rows/out/part-*", job_config=config)
    extract.result()
    assert extract.destination_uri_file_counts == [1]
    assert [blob.name for blob in bucket.list_blobs()] == ["out/part-000000000000"]
    back = LoadJobConfig(source_format=form, schema=WIDE)
    job = client.load_table_from_uri("gs://rows/out/*", STAGED, job_config=back)
    job.result()
    assert (job.output_rows, job.input_files) == (2, 1)
    assert [dict(row) for row in client.list_rows(STAGED)] == [dict(row) for row in client.list_rows(ANSWERS)]


def test_a_file_is_loaded_with_its_own_or_the_given_schema(client: bigquery.Client) -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"id": [1, 2], "tags": [["a"], []]}), file)
    file.seek(0)
    client.load_table_from_file(file, ANSWERS, job_config=LoadJobConfig(source_format="PARQUET")).result()
    assert rows_of(client) == [(1, ["a"]), (2, [])]
    config = LoadJobConfig(source_format="CSV", skip_leading_rows=1, schema=SCHEMA)
    csv = io.BytesIO(b"id,text\n1,one\n2,\n")
    client.load_table_from_file(csv, STAGED, job_config=config).result()
    assert rows_of(client, STAGED) == [(1, "one"), (2, None)]


def test_a_large_upload_arrives_in_chunks(sandbox: Sandbox, client: bigquery.Client) -> None:
    lines = "".join(json.dumps({"id": n, "text": "x" * 200}) + "\n" for n in range(10_000)).encode()
    config = LoadJobConfig(source_format="NEWLINE_DELIMITED_JSON", schema=SCHEMA)
    client.load_table_from_file(io.BytesIO(lines), ANSWERS, job_config=config).result()
    assert client.get_table(ANSWERS).num_rows == 10_000
    assert sandbox.stats()["methods"]["bigquery.uploads.start"]["calls"] == 1


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": "x"}, "Could not convert value to integer. Field: id; Value: x"),
        ({"id": 2, "txt": "x"}, "No such field: txt."),
        ({"text": "x"}, "Missing required field: id."),
        ({"id": 2, "text": {}}, "Could not convert value to string. Field: text"),
    ],
)
def test_a_failed_load_names_the_invalid_row_and_loads_none(
    client: bigquery.Client, row: dict[str, Any], message: str
) -> None:
    job = load(client, ANSWERS, [{"id": 1, "text": "one"}, row])
    with pytest.raises(BadRequest, match=r"too many errors, giving up\. Rows: 2; errors: 1"):
        job.result()
    assert job.error_result["reason"] == "invalid"
    assert message in job.errors[1]["message"]
    with pytest.raises(NotFound):
        client.get_table(ANSWERS)
    load(client, ANSWERS, [{"id": 1, "text": "one"}, row], max_bad_records=1).result()
    assert rows_of(client) == [(1, "one")]


def test_a_load_without_files_dataset_or_matching_schema_fails(client: bigquery.Client) -> None:
    config = LoadJobConfig(source_format="NEWLINE_DELIMITED_JSON", schema=SCHEMA)
    with pytest.raises(NotFound, match="Not found: URI gs://rows/none/"):
        client.load_table_from_uri("gs://rows/none/*", ANSWERS, job_config=config).result()
    with pytest.raises(NotFound, match="Not found: Dataset my-project:gone"):
        load(client, f"{PROJECT}.gone.t", [{"id": 1}]).result()
    client.create_table(bigquery.Table(ANSWERS, schema=SCHEMA))
    with pytest.raises(BadRequest, match="Field text has changed type from STRING to INTEGER"):
        load(client, ANSWERS, [], schema=[SchemaField("text", "INTEGER")]).result()


def test_a_load_detects_its_schema(client: bigquery.Client) -> None:
    config = LoadJobConfig(source_format="NEWLINE_DELIMITED_JSON", autodetect=True)
    rows = [{"id": 1, "x": 1}, {"id": 2, "x": 2.5, "who": {"name": "Ann"}}]
    client.load_table_from_json(rows, ANSWERS, job_config=config).result()
    assert [(one.name, one.field_type) for one in client.get_table(ANSWERS).schema] == [
        ("id", "INTEGER"),
        ("x", "FLOAT"),
        ("who", "RECORD"),
    ]


def test_a_copy_holds_the_rows_of_all_its_sources(client: bigquery.Client) -> None:
    stage(client)
    client.copy_table([ANSWERS, STAGED], f"{PROJECT}.llm.both").result()
    assert client.get_table(f"{PROJECT}.llm.both").num_rows == 4
    replace = CopyJobConfig(write_disposition="WRITE_TRUNCATE")
    client.copy_table(STAGED, ANSWERS, job_config=replace).result()
    assert rows_of(client) == rows_of(client, STAGED)


def test_streamed_rows_with_the_same_id_are_kept_once(client: bigquery.Client) -> None:
    client.create_table(bigquery.Table(ANSWERS, schema=SCHEMA))
    for _ in range(2):
        assert client.insert_rows_json(ANSWERS, [{"id": 1, "text": "a"}], row_ids=["one"]) == []
    (error,) = client.insert_rows_json(ANSWERS, [{"id": 2, "nope": "a"}])
    assert error["errors"][0]["message"] == "no such field: nope."
    assert rows_of(client) == [(1, "a")]


# Faults


def test_the_client_retries_after_a_fault(sandbox: Sandbox, client: bigquery.Client) -> None:
    faults = [Fault(kind="error", http_status=503), Fault(kind="rate-limit"), Fault(kind="disconnect")]
    sandbox.faults.queue("bigquery.tables.get", *faults)
    client.create_table(bigquery.Table(ANSWERS, schema=SCHEMA))
    retry = bigquery.DEFAULT_RETRY.with_delay(initial=0.01, maximum=0.05)
    assert client.get_table(ANSWERS, retry=retry).table_id == "answers"
    statuses = [record.http_status for record in sandbox.requests if record.method == "bigquery.tables.get"]
    assert statuses == [503, 403, 200, 200]


def test_a_job_whose_answer_is_lost_is_found_by_its_id(sandbox: Sandbox, client: bigquery.Client) -> None:
    stage(client)
    sandbox.faults.queue("bigquery.jobs.insert", Fault(kind="disconnect"))
    with pytest.raises(requests.ConnectionError):
        client.query(MERGE, job_id="merge-1", job_retry=None, retry=None)
    assert client.get_job("merge-1").num_dml_affected_rows == 2
    inserted = [record for record in sandbox.requests if record.method == "bigquery.jobs.insert"]
    assert inserted[-1].resource == "my-project/merge-1"


def test_a_refusal_has_the_message_of_bigquery(sandbox: Sandbox, client: bigquery.Client) -> None:
    sandbox.faults.queue("bigquery.jobs.query", Fault(kind="error", http_status=403))
    with pytest.raises(Forbidden, match="Access Denied") as caught:
        client.query_and_wait("SELECT 1", retry=None)
    assert caught.value.errors[0]["reason"] == "accessDenied"


def test_without_duckdb_the_error_names_it() -> None:
    code = """
import sys
sys.modules["duckdb"] = None
import httpx
from llmbeam_sandbox import Sandbox
with Sandbox() as sandbox:
    body = {"datasetReference": {"datasetId": "d"}}
    print(httpx.post(sandbox.authorized_url + "/bigquery/v2/projects/p/datasets", json=body).text)
print(sorted({"duckdb", "sqlglot", "cryptography", "pyarrow"} & {n for n, m in sys.modules.items() if m}))
"""
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "pip install duckdb sqlglot" in printed
    assert printed.splitlines()[-1] == "[]"
