"""Rows from BigQuery and answers to BigQuery: real jobs, with unmodified Google clients against the sandbox."""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.cloud import bigquery, storage
from google.cloud.bigquery import SchemaField
from llmbeam_sandbox import Fault, Proxy, Sandbox
from llmbeam_sandbox.batch_inference.settings import BatchSettings
from llmbeam_sandbox.models.embedding.base import vector

from airflow_provider_llmbeam.exceptions import (
    JobFailedError,
    JobSpecError,
    PermanentFailureError,
    SourceEmptyError,
)
from airflow_provider_llmbeam.pipeline import storage as files
from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.pipeline.measure.check import check_job
from airflow_provider_llmbeam.pipeline.measure.estimate.run import make_estimate
from airflow_provider_llmbeam.pipeline.measure.preview import make_preview
from airflow_provider_llmbeam.pipeline.sources import bigquery as bigquery_source
from airflow_provider_llmbeam.pipeline.sources.bigquery import discard, export
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.evaluation import PreviewSample
from airflow_provider_llmbeam.spec.sink import OUTPUT_COLUMNS
from airflow_provider_llmbeam.spec.source import BigQuerySource
from tests.clouds import for_one_test
from tests.processes import until_job

# Beam closes none of its clients of Cloud Storage.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
PROJECT = "llmbeam-sandbox"
ROWS, ANSWERS = f"{PROJECT}.llm.rows", f"{PROJECT}.llm.answers"
FROM_TABLE = {"type": "bigquery", "table": ROWS, "key": ["id"]}
QUERY = {"table": None, "query": f"SELECT id, text FROM `{ROWS}`"}
FROM_QUERY = {**FROM_TABLE, **QUERY}
TO_TABLE = {"type": "bigquery", "table": ANSWERS}
NUMBERS = {
    "llmbeam_input_tokens": "INT64",
    "llmbeam_output_tokens": "INT64",
    "llmbeam_attempts": "INT64",
    "llmbeam_latency_seconds": "FLOAT64",
}
OUTPUT_SCHEMA = [SchemaField(name, NUMBERS.get(name, "STRING")) for name in OUTPUT_COLUMNS]
OLD = {"id": 0, "answer": "old"}
ANY_RATIO = {"max_dead_letter_ratio": 1}


def serve(**options: Any) -> Iterator[tuple[Sandbox, Proxy]]:
    with Sandbox(buckets=("state",), **options) as sandbox, Proxy(sandbox) as proxy:
        yield sandbox, proxy


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Sandbox, Proxy]]:
    yield from serve()


@pytest.fixture(scope="module")
def served_slowly() -> Iterator[tuple[Sandbox, Proxy]]:
    """A sandbox in which every BigQuery job takes half a second."""
    yield from serve(bigquery_job_seconds=0.5)


def enter(served: tuple[Sandbox, Proxy], monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    yield from for_one_test(served, monkeypatch)


@pytest.fixture
def sandbox(served, monkeypatch) -> Iterator[Sandbox]:
    """A sandbox that replaces Google through environment variables alone."""
    yield from enter(served, monkeypatch)


@pytest.fixture
def slow_sandbox(served_slowly, monkeypatch) -> Iterator[Sandbox]:
    yield from enter(served_slowly, monkeypatch)


@pytest.fixture
def client(sandbox) -> Iterator[bigquery.Client]:
    with bigquery.Client() as made:
        made.create_dataset("llm")
        yield made


def rows(count: int) -> list[dict[str, Any]]:
    return [{"id": number, "text": f"row {number}"} for number in range(count)]


def load(client: bigquery.Client, found: list[dict[str, Any]], table: str = ROWS, **config: Any) -> None:
    options = {"autodetect": "schema" not in config, **config}
    client.load_table_from_json(found, table, job_config=bigquery.LoadJobConfig(**options)).result()


def change(client: bigquery.Client, statement: str) -> None:
    client.query_and_wait(statement)


def make_answers(client: bigquery.Client, key: list[SchemaField] | None = None, **changes: Any) -> None:
    """Creates a target table with one old row."""
    key = key or [SchemaField("id", "INT64")]
    columns = [changes.get(field.name, field) for field in OUTPUT_SCHEMA]
    load(client, [OLD], ANSWERS, schema=[*key, *columns])


def spec_of(**changes: Any) -> JobSpec:
    return JobSpec.parse(
        {
            "name": "job",
            "source": FROM_TABLE,
            "prompt": {"template": "Say it: {{ row.text }}"},
            "model": {"type": "echo"},
            "sink": TO_TABLE,
            "state_uri": "gs://state/",
            **changes,
        }
    )


def asking(sandbox: Sandbox, **changes: Any) -> JobSpec:
    """Returns the spec of a job whose requests go to the model of the sandbox, which counts them."""
    return spec_of(model={"type": "gemini", "base_url": sandbox.gemini_url}, **changes)


def dead_letter_of(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in files.read(manifest["dead_letter_uri"]).splitlines()]


def table_of(client: bigquery.Client, table: str = ANSWERS) -> dict[Any, dict[str, Any]]:
    found = [dict(row) for row in client.list_rows(table)]
    by_key = {row["id"]: row for row in found}
    assert len(by_key) == len(found), "a key has several rows"
    return by_key


def answers_of(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    with storage.Client() as made:
        texts = [storage.Blob.from_uri(uri, made).download_as_text() for uri in manifest["answers_uris"]]
    return [json.loads(line) for text in texts for line in text.splitlines()]


def jobs_of(client: bigquery.Client, kind: str) -> list[Any]:
    return [job for job in client.list_jobs() if job.job_id.startswith(f"llmbeam-{kind}-")]


def objects() -> set[str]:
    with storage.Client() as made:
        return {blob.name for blob in made.bucket("state").list_blobs()}


# Sources


@pytest.mark.full
def test_a_table_is_answered_into_files(client, sandbox):
    load(client, rows(50))
    manifest = run(spec_of(sink={"uri": "gs://state/out/"}))
    assert manifest["rows"] == {"read": 50, "answered": 50, "dead_letter": 0, "skipped": 0}
    assert sorted(row["id"] for row in answers_of(manifest)) == list(range(50))
    assert sandbox.stats()["bigquery_bytes_billed"] == 0, "an export costs nothing"


def test_a_query_is_answered_into_a_table(client):
    load(client, rows(50))
    source = {**FROM_QUERY, "query": f"SELECT id, text FROM `{ROWS}` WHERE id < 20"}
    manifest = run(spec_of(source=source))
    assert manifest["rows"] == {"read": 20, "answered": 20, "dead_letter": 0, "skipped": 0}
    assert manifest["answers_uris"] == [f"bigquery://{ANSWERS}"]
    answers = table_of(client)
    assert {key: row["answer"] for key, row in answers.items()} == {n: f"Say it: row {n}" for n in range(20)}
    assert [field.name for field in client.get_table(ANSWERS).schema] == ["id", *OUTPUT_COLUMNS]
    assert [table.table_id for table in client.list_tables("llm")] == ["answers", "rows"], "no staging is left"


@pytest.mark.full
def test_a_query_is_answered_into_a_table_by_batch_inference_of_vertex_ai(client, sandbox):
    sandbox.batches.settings = BatchSettings(reorders_echo=True, fail_ratio=0.1)
    load(client, rows(100))
    model = {"type": "gemini", "project": PROJECT, "base_url": sandbox.gemini_url}
    manifest = run(spec_of(source=FROM_QUERY, model=model, inference={"mode": "batch"}))
    assert manifest["rows"] == {"read": 100, "answered": 100, "dead_letter": 0, "skipped": 0}
    assert manifest["origins"]["batch"] == 61  # of 68 without the pilot, a tenth of which fails
    assert set(table_of(client)) == set(range(100))
    assert len(jobs_of(client, "query")) == 1, "the pilot, the request files and the rest read one export"


@pytest.mark.full
def test_an_estimate_and_its_job_share_one_export_and_the_sample(client, sandbox):
    load(client, rows(50))
    spec = asking(sandbox, source=FROM_QUERY)
    found = make_estimate(spec, sample_size=10)
    assert (found.rows, found.requests, found.sample_usage.requests) == (50, 40, 10)
    assert [table.table_id for table in client.list_tables("llm")] == ["rows"], "nothing is in the sink"
    manifest = run(spec)
    assert (manifest["origins"]["fresh"], manifest["origins"]["resumed"]) == (40, 10)
    assert manifest["estimate"]["input_tokens"]["ratio"] == pytest.approx(1, abs=0.05)
    assert set(sandbox.requests.paid().values()) == {1}
    assert len(jobs_of(client, "query")) == 1, "the job reads the export of its estimate"


def exported(**source: Any) -> str:
    return export(BigQuerySource.parse({**FROM_TABLE, **source}), "gs://state/export/").directory


def test_a_check_a_preview_and_the_run_after_them_run_the_query_once_and_say_when(client, sandbox):
    load(client, rows(50))
    spec = asking(sandbox, source=FROM_QUERY)
    first = str(check_job(spec, PreviewSample()))
    assert first.endswith("No request was sent to a model. The query of the source ran once: BigQuery bills it.")
    assert "Rows      50 = 50 requests" in first
    assert str(check_job(spec, PreviewSample())).endswith("Nothing was sent or billed.")
    assert make_preview(spec, PreviewSample(keys=("7",), sends=False)).ran_query is False
    assert len(jobs_of(client, "query")) == 1
    assert run(spec)["rows"]["answered"] == 50
    assert len(jobs_of(client, "query")) == 1, "the run reads the export of the check"


def test_a_check_of_a_query_without_rows_says_that_the_query_is_billed(client, sandbox):
    load(client, rows(5))
    spec = asking(sandbox, source={**FROM_QUERY, "query": f"SELECT id, text FROM `{ROWS}` WHERE id < 0"})
    with pytest.raises(SourceEmptyError, match=r"BigQuery bills it\. Nothing was sent or billed beside it\.$"):
        check_job(spec, PreviewSample())


@pytest.mark.full
def test_an_export_that_no_run_has_read_is_repeated_after_a_day_and_the_one_of_a_run_is_not(client, monkeypatch):
    load(client, rows(5))
    source = BigQuerySource.parse({**FROM_TABLE, **QUERY})

    def directory(uri: str, *, is_of_run: bool) -> str:
        return export(source, uri, is_of_run=is_of_run).directory

    checked, taken = "gs://state/checked/", "gs://state/taken/"
    before = {uri: directory(uri, is_of_run=False) for uri in (checked, taken)}
    assert {uri: directory(uri, is_of_run=uri == taken) for uri in before} == before
    tomorrow = time.time() + 90_000
    monkeypatch.setattr(bigquery_source, "time", SimpleNamespace(time=lambda: tomorrow))
    assert directory(taken, is_of_run=True) == before[taken], "a retry reads what the first try has read"
    assert directory(checked, is_of_run=True) != before[checked]
    assert not files.match(f"{before[checked]}**"), "the old one is deleted"


@pytest.mark.full
def test_a_view_is_exported_by_a_query(client):
    load(client, rows(5))
    view = bigquery.Table(f"{PROJECT}.llm.some")
    view.view_query = f"SELECT id, text FROM `{ROWS}` WHERE id > 2"
    client.create_table(view)
    exported(table=f"{PROJECT}.llm.some")
    (query,) = jobs_of(client, "query")
    assert query.result().total_rows == 2


@pytest.mark.full
def test_a_table_with_streamed_rows_is_exported_by_a_query_as_an_extract_leaves_them_out(client):
    load(client, rows(2))
    assert client.insert_rows_json(ROWS, [{"id": 2, "text": "row 2"}]) == []
    assert sorted(row["id"] for row in answers_of(run(spec_of(sink={"uri": "gs://state/out"})))) == [0, 1, 2]
    (query,) = jobs_of(client, "query")
    assert query.result().total_rows == 3


@pytest.mark.full
def test_an_export_is_made_once_per_query(client):
    load(client, rows(5))
    first = exported(**QUERY)
    load(client, [{"id": 5, "text": "new"}], write_disposition="WRITE_APPEND")
    assert exported(**QUERY) == first
    assert exported(table=None, query=f"SELECT id FROM `{ROWS}`") != first
    assert len(jobs_of(client, "query")) == 2
    discard("gs://state/export/")
    assert objects() == set()


@pytest.mark.full
def test_an_export_without_files_is_repeated(client):
    load(client, rows(5))
    first = exported()
    with storage.Client() as made:
        made.bucket("state").delete_blobs(list(made.bucket("state").list_blobs(prefix=f"export/{first[-33:-1]}")))
    assert exported() != first


def test_a_failed_export_is_started_again(client, sandbox):
    load(client, rows(5))
    sandbox.faults.when("bigquery.jobs.insert", "llmbeam-extract", Fault(kind="abort"), times=1)
    with pytest.raises(JobFailedError, match="Nothing was sent or billed; a retry may help"):
        exported(**QUERY)
    exported(**QUERY)
    assert len(jobs_of(client, "query")) == 2


OF_EACH_TYPE = {
    "price": ("NUMERIC", "9.90", "9.9"),
    "big": ("NUMERIC", "12345678901234567890123456789.000000001", "12345678901234567890123456789.000000001"),
    "at": ("TIMESTAMP", "2026-01-02T03:04:05.000006Z", "2026-01-02 03:04:05.000006+00:00"),
    "day": ("DATE", "2026-01-02", "2026-01-02"),
    "local": ("DATETIME", "2026-01-02T03:04:05", "2026-01-02T03:04:05"),
    "clock": ("TIME", "03:04:05", "03:04:05"),
    "raw": ("BYTES", "AAE=", "AAE="),
    "doc": ("JSON", {"k": [1]}, '{"k": [1]}'),
    "place": ("GEOGRAPHY", "POINT(1 2)", "POINT(1 2)"),
    "ratio": ("FLOAT64", 0.5, 0.5),
    "nothing": ("STRING", None, None),
}


def load_values(client, *ids):
    """Loads a row with a value of each type for each key."""
    schema = [SchemaField("id", "INT64"), *(SchemaField(name, one[0]) for name, one in OF_EACH_TYPE.items())]
    schema.append(SchemaField("days", "DATE", mode="REPEATED"))
    schema.append(SchemaField("who", "RECORD", fields=[SchemaField("price", "NUMERIC")]))
    row = {"days": ["2026-01-02"], "who": {"price": "1.50"}} | {n: one[1] for n, one in OF_EACH_TYPE.items()}
    load(client, [{"id": key, **row} for key in ids], schema=schema)


@pytest.mark.full
def test_values_of_each_type_become_json_values(client):
    load_values(client, 1)
    run(spec_of(prompt={"template": "{{ row | tojson }}"}))
    shown = json.loads(table_of(client)[1]["answer"])
    expected = {"id": 1, "days": ["2026-01-02"], "who": {"price": "1.5"}} | {
        n: one[2] for n, one in OF_EACH_TYPE.items()
    }
    assert shown == expected


@pytest.mark.full
def test_a_retry_of_failed_rows_renders_values_of_each_type_as_the_first_run_did(client):
    load_values(client, 1, 2)
    names = [*OF_EACH_TYPE, "days", "who"]
    template = f"{{% for name in {names} %}}{{{{ row[name] }}}} {{% endfor %}}{{{{ row.price * 2 }}}}"
    fails = "{% if row.id == 2 %}{{ row.missing.more }}{% endif %}"
    limits = {"max_dead_letter_ratio": 0.5}
    dead_letter = run(spec_of(prompt={"template": fails + template}, limits=limits))["dead_letter_uri"]
    again = {"type": "files", "uri": dead_letter, "format": "jsonl", "key": ["id"]}
    assert run(spec_of(name="again", source=again, prompt={"template": template}))["rows"]["answered"] == 1
    first, retried = (table_of(client)[key]["answer"] for key in (1, 2))
    assert retried == first
    assert first.endswith("{'price': '1.5'} 9.99.9")


# Sinks


@pytest.mark.full
def test_keys_of_each_type_find_their_rows(client, sandbox):
    key = [
        SchemaField("id", "INT64"),
        SchemaField("name", "STRING"),
        SchemaField("price", "NUMERIC"),
        SchemaField("at", "TIMESTAMP"),
        SchemaField("day", "DATE"),
        SchemaField("local", "DATETIME"),
        SchemaField("clock", "TIME"),
        SchemaField("raw", "BYTES"),
        SchemaField("flag", "BOOL"),
        SchemaField("ratio", "FLOAT64"),
    ]
    same = {"name": "ä`'\"\\", "price": "9.90", "at": "2026-01-02T03:04:05.000006Z", "day": "2026-01-02"}
    same |= {"local": "2026-01-02T03:04:05", "clock": "03:04:05", "raw": "AAE=", "flag": True, "ratio": 0.1}
    load(
        client,
        [{"id": n, "text": f"row {n}", **same} for n in range(3)],
        schema=[*key, SchemaField("text", "STRING")],
    )
    load(client, [OLD | same], ANSWERS, schema=[*key, *OUTPUT_SCHEMA])
    spec = spec_of(source={**FROM_TABLE, "key": [field.name for field in key]})
    run(spec)
    first = table_of(client)
    assert {key: row["answer"] for key, row in first.items()} == {n: f"Say it: row {n}" for n in range(3)}
    assert (first[2]["price"], first[2]["raw"], first[2]["clock"].hour) == (Decimal("9.9"), b"\x00\x01", 3)
    assert (first[2]["day"], first[2]["at"]) == (date(2026, 1, 2), datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC))
    run(spec)
    assert table_of(client) == first


@pytest.mark.full
def test_the_bytes_of_a_source_are_those_of_the_table_and_texts_in_a_column_of_texts(client, tmp_path):
    contents = [b"\xff\x00\x01", b"text", b"hello"]
    pq.write_table(pa.table({"id": [0, 1, 2], "text": ["x"] * 3, "raw": contents}), tmp_path / "rows.parquet")
    source = {"type": "files", "uri": f"{tmp_path}/rows.parquet", "key": ["id"]}
    sink = {"type": "bigquery", "table": ANSWERS, "passthrough": ["raw"]}
    run(spec_of(source=source, sink=sink))
    assert [row["raw"] for _, row in sorted(table_of(client).items())] == ["/wAB", "text", "hello"]
    client.delete_table(ANSWERS)
    fields = [SchemaField("id", "INT64"), SchemaField("raw", "BYTES"), *OUTPUT_SCHEMA]
    client.create_table(bigquery.Table(ANSWERS, schema=fields))
    run(spec_of(name="again", source=source, sink=sink))
    assert [row["raw"] for _, row in sorted(table_of(client).items())] == contents


@pytest.mark.parametrize(
    ("ids", "refused", "message"),
    [
        (["7", "07", "8"], ["7", "07"], "rows with different keys, this one is '7', have one key in table"),
        (["7", "A12"], ["A12"], "column 'id' of type INT64 does not hold 'A12'."),
        ([20.5, 20.25, 4.0], [20.5, 20.25], "column 'id' of type INT64 does not hold 20.5."),
    ],
)
def test_keys_that_the_type_of_the_table_does_not_tell_apart_are_failed_rows(
    client, sandbox, tmp_path, ids, refused, message
):
    make_answers(client)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"id": n, "text": f"row {n}"}) + "\n" for n in ids))
    spec = asking(sandbox, source={"uri": str(tmp_path / "rows.jsonl"), "key": ["id"]}, limits=ANY_RATIO)
    for _ in range(2):
        manifest = run(spec)
        failed = {row["id"]: row["llmbeam_error"] for row in dead_letter_of(manifest)}
        assert [*failed] == refused
        assert message in failed[refused[0]]["message"]
        assert [*table_of(client)] == [0, *(int(key) for key in ids if key not in refused)]
    assert sandbox.stats()["billed_answers"] == len(ids)
    run(asking(sandbox, source=spec.source, sink={**TO_TABLE, "table": f"{ANSWERS}_of_texts"}))
    assert {*table_of(client, f"{ANSWERS}_of_texts")} == {*ids}
    assert sandbox.stats()["billed_answers"] == len(ids), "the answers of the journal are merged"


@pytest.mark.full
def test_keys_of_several_types_that_are_equal_as_text_are_failed_rows(client, tmp_path):
    lines = ['{"id": 1, "text": "a"}', '{"id": "1", "text": "b"}', '{"id": "2", "text": "c"}']
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    manifest = run(spec_of(source={"uri": str(tmp_path / "rows.jsonl"), "key": ["id"]}, limits=ANY_RATIO))
    assert (manifest["rows"]["dead_letter"], [*table_of(client)]) == (2, ["2"])


def test_a_value_of_another_type_in_a_later_run_concerns_its_row_alone(client, sandbox, tmp_path):
    sink = {**TO_TABLE, "passthrough": ["size"]}

    def spec(*sizes: Any, **changes: Any) -> JobSpec:
        read = [{"id": number, "text": f"row {number}", "size": size} for number, size in enumerate(sizes)]
        return asking(sandbox, source={"type": "rows", "rows": read, "key": "id"}, sink=sink, **changes)

    run(spec(1, 2, 3))
    with pytest.raises(PermanentFailureError, match="column 'size' of type INT64 does not hold 'XL'") as raised:
        run(spec(4, "XL", 6))
    assert "another run sends nothing, and publishes them" in str(raised.value)
    assert [row["size"] for _, row in sorted(table_of(client).items())] == [1, 2, 3]
    for options in ([], ["--direct_runner_bundle_repeat=1"]):
        manifest = run(spec(4, "XL", 6, limits=ANY_RATIO), options)
        assert manifest["rows"] == {"read": 3, "answered": 2, "dead_letter": 1, "skipped": 0}
        (row,) = dead_letter_of(manifest)
        assert (row["id"], row["text"], row["size"]) == (1, "row 1", "XL")
        assert [row["size"] for _, row in sorted(table_of(client).items())] == [4, 2, 6]
    assert sandbox.stats()["billed_answers"] == 3


def test_a_second_run_changes_nothing_and_a_later_one_only_what_is_new(client, sandbox):
    load(client, rows(20))
    spec = asking(sandbox)
    run(spec)
    first = table_of(client)
    assert run(spec)["origins"]["resumed"] == 20
    assert table_of(client) == first
    assert sandbox.stats()["billed_answers"] == 20
    assert not [name for name in objects() if "/export/" in name or "/staging/" in name]

    change(client, f"UPDATE `{ROWS}` SET text = 'changed' WHERE id = 3")
    load(client, [{"id": 20, "text": "new"}], write_disposition="WRITE_APPEND")
    run(spec)
    assert len(table_of(client)) == 21
    assert sandbox.stats()["billed_answers"] == 22
    changes = [
        (job.dml_stats.inserted_row_count, job.dml_stats.updated_row_count) for job in jobs_of(client, "merge")
    ]
    assert changes == [(1, 1), (0, 0), (20, 0)], "the latest first"


@pytest.mark.full
def test_additional_columns_of_the_user_are_kept(client):
    load(client, rows(2))
    key = [SchemaField("ID", "INT64"), SchemaField("checked_by", "STRING")]
    load(client, [{"ID": 0, "answer": "old", "checked_by": "Ann"}], ANSWERS, schema=[*key, *OUTPUT_SCHEMA])
    run(spec_of())
    found = {row["ID"]: (row["answer"], row["checked_by"]) for row in client.list_rows(ANSWERS)}
    assert found == {0: ("Say it: row 0", "Ann"), 1: ("Say it: row 1", None)}


@pytest.mark.full
def test_a_json_column_accepts_structured_answers_and_texts_that_are_no_json(client):
    load(client, [{"id": n, "text": json.dumps({"label": f"l{n}", "score": 0.1})} for n in range(2)])
    make_answers(client, answer=SchemaField("answer", "JSON"))
    structured = spec_of(prompt={"template": "{{ row.text }}", "output_schema": {"type": "object"}})
    texts = spec_of(name="texts", prompt={"template": "Say {{ row.id }}"})
    for spec, answer in ((structured, {"label": "l1", "score": 0.1}), (texts, "Say 1")):
        for _ in range(2):
            run(spec)
            assert table_of(client)[1]["answer"] == answer
        assert jobs_of(client, "merge")[0].num_dml_affected_rows == 0


@pytest.mark.full
def test_an_empty_text_is_null_in_a_column_of_a_type_without_one(client):
    typed = [SchemaField("size", "INT64"), SchemaField("day", "DATE"), SchemaField("name", "STRING")]
    make_answers(client, [SchemaField("id", "INT64"), *typed])
    read = [{"id": "1", "text": "a", "size": "", "day": "", "name": ""}, {"id": "2", "text": "b", "size": "7"}]
    source = {"type": "rows", "rows": read, "key": "id"}
    spec = spec_of(source=source, sink={**TO_TABLE, "passthrough": ["size", "day", "name"]})
    for _ in range(2):
        run(spec)
        found = {key: (row["size"], row["day"], row["name"]) for key, row in table_of(client).items()}
        assert found == {0: (None, None, None), 1: (None, None, ""), 2: (7, None, None)}


@pytest.mark.full
def test_a_fraction_for_a_column_of_integers_is_a_failed_row_and_nothing_is_rounded(client, tmp_path):
    sink = {**TO_TABLE, "passthrough": ["size"]}

    def spec(*sizes: float) -> JobSpec:
        read = [{"id": number, "text": "a", "size": size} for number, size in enumerate(sizes)]
        source = {"type": "rows", "rows": read, "key": "id"}
        return spec_of(source=source, sink=sink, state_uri=str(tmp_path), limits=ANY_RATIO)

    run(spec(3, 4))
    manifest = run(spec(3.7, 4.0, 9.5))
    assert [row["size"] for row in dead_letter_of(manifest)] == [3.7, 9.5]
    assert {key: row["size"] for key, row in table_of(client).items()} == {0: 3, 1: 4}
    run(spec(4.0, 4, 5.0))
    assert {key: row["size"] for key, row in table_of(client).items()} == {0: 4, 1: 4, 2: 5}


@pytest.mark.full
def test_vectors_are_arrays_of_numbers(client, sandbox):
    load(client, rows(5))
    model = {"type": "openai", "name": "text-embedding-3-small", "base_url": sandbox.openai_url}
    spec = spec_of(task="embed", embedding={"dimensions": 4}, prompt={"template": "{{ row.text }}"}, model=model)
    for changes in (5, 0):
        run(spec)
        assert jobs_of(client, "merge")[0].num_dml_affected_rows == changes
    expected = vector("row 3", model="text-embedding-3-small", dimensions=4)
    assert table_of(client)[3]["answer"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.full
def test_answers_staged_on_this_machine_are_uploaded(client, tmp_path):
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows(30)))
    run(spec_of(source={"uri": str(source), "key": ["id"]}, state_uri=str(tmp_path / "state")))
    assert len(table_of(client)) == 30


def test_a_run_without_rows_leaves_the_table_unchanged(client):
    load(client, [], schema=[SchemaField("id", "INT64"), SchemaField("text", "STRING")])
    assert run(spec_of(source={**FROM_TABLE, "on_empty": "write"}))["rows"]["read"] == 0
    assert [table.table_id for table in client.list_tables("llm")] == ["rows"]


@pytest.mark.full
def test_an_empty_table_fails_or_is_skipped_and_a_later_run_reads_its_new_rows(client):
    """The export of the empty table is discarded: a retry would read it again otherwise."""
    load(client, [], schema=[SchemaField("id", "INT64"), SchemaField("text", "STRING")])
    with pytest.raises(SourceEmptyError, match=rf"`source\.table` '{ROWS}' has no rows, so the output was left"):
        run(spec_of())
    skipped = run(spec_of(source={**FROM_TABLE, "on_empty": "skip"}))
    assert skipped["skipped_because"] == f"`source.table` '{ROWS}' has no rows, so the output was left as it is."
    load(client, rows(2), write_disposition="WRITE_APPEND")
    assert run(spec_of())["rows"]["answered"] == 2


STRUCTURED = {
    "type": "object",
    "properties": {
        "mood": {"type": "string"},
        "score": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "who": {"anyOf": [{"$ref": "#/$defs/Who"}, {"type": "null"}]},
        "other": {},
    },
    "$defs": {"Who": {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "number"}}}},
}
VALUES = [
    {"mood": "good", "score": 3, "tags": ["a", "b"], "who": {"name": "Ann", "age": 4.5}, "other": {"x": 1}},
    {"mood": "bad", "score": 1, "tags": [], "who": None, "other": "y"},
]
STORED = [
    {"mood": "good", "score": 3, "tags": ["a", "b"], "who": {"name": "Ann", "age": 4.5}, "other": '{"x": 1}'},
    {"mood": "bad", "score": 1, "tags": [], "who": None, "other": "y"},
]


@pytest.mark.parametrize("form", ["struct", pytest.param("flat", marks=pytest.mark.full)])
def test_a_structured_answer_has_typed_columns_and_a_second_run_changes_nothing(client, form):
    load(client, [{"id": n, "text": json.dumps(value)} for n, value in enumerate(VALUES)])
    prompt = {"template": "{{ row.text }}", "output_schema": STRUCTURED}
    spec = spec_of(prompt=prompt, sink={**TO_TABLE, "answer_columns": form})
    for changed in (2, 0):
        run(spec)
        found = table_of(client)
        stored = [found[n]["answer"] if form == "struct" else found[n] for n in range(2)]
        assert [{name: row[name] for name in STORED[0]} for row in stored] == STORED
        assert jobs_of(client, "merge")[0].num_dml_affected_rows == changed
    schema = {field.name: field for field in client.get_table(ANSWERS).schema}
    fields = {field.name: field for field in schema["answer"].fields} if form == "struct" else schema
    assert fields["score"].field_type in ("INTEGER", "INT64")
    assert (fields["tags"].mode, fields["who"].field_type) == ("REPEATED", "RECORD")


@pytest.mark.full
@pytest.mark.parametrize("form", ["struct", pytest.param("flat", marks=pytest.mark.full)])
def test_an_answer_that_the_table_does_not_hold_is_a_failed_row_and_the_others_are_merged(client, form):
    load(client, [{"id": n, "text": json.dumps({"n": n if n != 1 else 10**25})} for n in range(3)])
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    spec = spec_of(
        prompt={"template": "{{ row.text }}", "output_schema": schema},
        sink={**TO_TABLE, "answer_columns": form},
        limits={"max_dead_letter_ratio": 0.5},
    )
    for origin in ("fresh", "resumed"):
        manifest = run(spec)
        assert manifest["rows"] == {"read": 3, "answered": 2, "dead_letter": 1, "skipped": 0}
        found = table_of(client)
        assert {key: (row["answer"] if form == "struct" else row)["n"] for key, row in found.items()} == {
            0: 0,
            2: 2,
        }
        with storage.Client() as made:
            failed = json.loads(storage.Blob.from_uri(manifest["dead_letter_uri"], made).download_as_text())
        error = failed["llmbeam_error"]
        assert (failed["id"], error["kind"], error["origin"]) == (1, "invalid_output", origin)
        assert "does not fit into column" in error["message"]


@pytest.mark.full
def test_a_null_is_null_in_a_column_of_structs(client):
    load(client, [{"id": 1, "text": "null"}, {"id": 2, "text": '{"n": 2}'}])
    schema = {"type": ["object", "null"], "properties": {"n": {"type": "integer"}}}
    prompt = {"template": "{{ row.text }}", "output_schema": schema}
    for _ in range(2):
        run(spec_of(prompt=prompt, sink={**TO_TABLE, "answer_columns": "struct"}))
        assert {key: row["answer"] for key, row in table_of(client).items()} == {1: None, 2: {"n": 2}}


@pytest.mark.full
def test_a_table_of_another_schema_is_refused_before_anything_is_sent(client, sandbox):
    load(client, [{"id": 1, "text": json.dumps(VALUES[0])}])
    prompt = {"template": "{{ row.text }}", "output_schema": STRUCTURED}
    run(spec_of(prompt=prompt, sink={**TO_TABLE, "answer_columns": "struct"}))
    prompt["output_schema"] = {"type": "object", "properties": {"mood": {"type": "string"}}}
    with pytest.raises(JobSpecError, match=r"has column 'answer' of type STRUCT<.*, and the answers' is STRUCT<"):
        run(asking(sandbox, prompt=prompt, sink={**TO_TABLE, "answer_columns": "struct"}))
    assert sandbox.stats()["billed_answers"] == 0


@pytest.mark.full
def test_columns_are_passed_through_to_a_new_table_and_an_existing_one(client):
    load(client, [{"id": n, "text": "x", "lang": "en", "size": n} for n in range(2)])
    for _ in range(2):
        run(spec_of(sink={**TO_TABLE, "passthrough": ["lang", "size"]}))
        assert [(row["lang"], row["size"]) for row in table_of(client).values()] == [("en", 0), ("en", 1)]
    wider = spec_of(sink={**TO_TABLE, "passthrough": ["text"]})
    with pytest.raises(JobSpecError, match="has no column 'text', which every answer has") as refused:
        run(wider)
    client.query_and_wait(str(refused.value).partition("run: ")[2].partition(";")[0])
    run(wider)
    assert [row["text"] for row in table_of(client).values()] == ["x", "x"]


@pytest.mark.full
def test_a_bundle_that_the_runner_repeats_publishes_once(client):
    load(client, rows(10))
    run(spec_of(), ["--direct_runner_bundle_repeat=1"])
    assert len(table_of(client)) == 10
    assert len(jobs_of(client, "merge")) == 1


# Errors before the first request to the model

GONE = f"{PROJECT}.llm.gone"
#: Maximum of calls per method until a job is refused; measured: at most 6, for six files.
MOST_CALLS = 6
REFUSED = {
    "no table": ({"source": {**FROM_TABLE, "table": GONE}}, r"`source.table` '.*gone': Not found: Table .*gone"),
    "no dataset": (
        {"source": {**FROM_TABLE, "table": f"{PROJECT}.nowhere.t"}},
        r"`source.table` '.*nowhere.t': Not found: Dataset .*nowhere",
    ),
    "wrong SQL": ({"source": {**FROM_QUERY, "query": "SELEC 1"}}, "`source.query`: Syntax error: Unexpected"),
    "wrong column": (
        {"source": {**FROM_QUERY, "query": f"SELECT nope FROM `{ROWS}`"}},
        "`source.query`: Unrecognized name: nope",
    ),
    "no SELECT": (
        {"source": {**FROM_QUERY, "query": f"DELETE FROM `{ROWS}` WHERE id = 1"}},
        "`source.query` must be one SELECT; it is DELETE",
    ),
    "no key": (
        {"source": {**FROM_TABLE, "key": ["id", "day"]}},
        r"`source.key`: no column 'day'; there are \['id', 'text'\]",
    ),
    "no bucket": (
        {"source": {**FROM_TABLE, "export_uri": "gs://nobucket/x"}},
        "`source.export_uri` 'gs://nobucket/x/job/': there is no bucket 'nobucket'",
    ),
    "no bucket for the state": ({"state_uri": "gs://nobucket/x"}, "there is no bucket 'nobucket'"),
    "no dataset to write to": (
        {"sink": {**TO_TABLE, "table": f"{PROJECT}.nowhere.t"}},
        r"`sink.table` '.*nowhere.t': Not found: Dataset .*nowhere",
    ),
    "another location": ({"sink": {**TO_TABLE, "location": "EU"}}, "`sink.location` 'EU': dataset 'llm' is in US"),
}
#: Those of the loop.
SMOKE = ("no table", "wrong SQL", "no dataset to write to")


def calls_of(sandbox):
    """Returns the number of calls of each method."""
    return Counter({name: found["calls"] for name, found in sandbox.stats()["methods"].items()})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param(*case, id=name, marks=() if name in SMOKE else pytest.mark.full)
        for name, case in REFUSED.items()
    ],
)
def test_an_unusable_source_or_sink_is_refused_at_once_with_one_message(client, sandbox, changes, message):
    load(client, rows(2))
    before = calls_of(sandbox)
    with pytest.raises(JobSpecError, match=message) as caught:
        run(asking(sandbox, **changes))
    assert max((calls_of(sandbox) - before).values(), default=0) <= MOST_CALLS, "nothing is tried again"
    assert str(caught.value).endswith("Nothing was sent or billed.")
    assert sandbox.stats()["billed_answers"] == 0
    assert sandbox.stats()["bigquery_bytes_billed"] == 0


@pytest.mark.full
@pytest.mark.parametrize(
    ("method", "contains", "field"),
    [
        ("bigquery.tables.get", "rows", "source.table"),
        ("bigquery.jobs.insert", "extract", "source.table"),
        ("bigquery.datasets.get", "llm", "sink.table"),
        ("bigquery.jobs.insert", "MERGE", "sink.table"),
        ("storage.objects.get", "current.json", "source.table"),
        ("storage.uploads.start", "state", "state_uri"),
    ],
)
def test_a_missing_permission_is_an_error_before_anything_is_sent(client, sandbox, method, contains, field):
    load(client, rows(2))
    make_answers(client)
    sandbox.faults.when(method, contains, Fault(kind="error", http_status=403), times=1)
    with pytest.raises(
        JobSpecError, match=rf"`{field}` .*: (Access Denied|.*The caller does not).* Nothing was sent"
    ):
        run(asking(sandbox))
    assert sandbox.stats()["billed_answers"] == 0
    gc.collect()  # A file of google-cloud-storage that could not be closed retries when it is garbage-collected.


def test_duplicate_keys_end_the_job_before_anything_is_sent(client, sandbox):
    load(client, [*rows(5), {"id": 3, "text": "again"}])
    with pytest.raises(JobSpecError, match=r"1 key belongs to several rows: \{\"id\": 3\}"):
        run(asking(sandbox))
    assert sandbox.stats()["billed_answers"] == 0


@pytest.mark.parametrize("details", [False, True], ids=["without details", "without columns for them"])
def test_answers_are_merged_into_a_table_of_ones_own_and_a_key_without_a_row_is_a_failed_row(
    client, sandbox, details
):
    load(client, [{"id": 1, "text": "shoe"}, {"id": 2, "text": "boot"}])
    columns = [("id", "INT64"), ("title", "STRING"), ("model", "STRING"), ("title_de", "STRING")]
    schema = [SchemaField(name, kind, "REQUIRED" if name == "title" else "NULLABLE") for name, kind in columns]
    own = [{"id": 1, "title": "shoe", "model": "city"}, {"id": 3, "title": "sock", "model": "knee"}]
    load(client, own, ANSWERS, schema=schema)
    field = {"type": "object", "properties": {"title_de": {"type": "string"}}, "required": ["title_de"]}
    spec = spec_of(
        prompt={"template": "{{ row.text }}", "output_schema": field},
        model={"type": "gemini", "base_url": sandbox.gemini_url},
        sink={**TO_TABLE, "answer_columns": "flat", "details": details},
        limits=ANY_RATIO,
    )
    for _ in range(2):
        manifest = run(spec)
        assert (manifest["rows"]["answered"], manifest["dead_letter_by_kind"]) == (1, {"not_stored": 1})
        found = [dict(row) for row in client.query_and_wait(f"SELECT * FROM `{ANSWERS}` ORDER BY id")]
        assert [{**row, "title_de": None} for row in found] == [row | {"title_de": None} for row in own]
        assert [row["title_de"] is None for row in found] == [False, True]
    assert sandbox.stats()["billed_answers"] == 2


TARGETS = {
    "too few columns": (
        [SchemaField("id", "INT64"), *OUTPUT_SCHEMA[1:]],
        r"has no column 'answer', which every answer has\. .*"
        r"run: ALTER TABLE `llmbeam-sandbox.llm.answers` ADD COLUMN `answer` STRING;",
    ),
    "one too many": (
        [SchemaField("id", "INT64"), SchemaField("day", "DATE", mode="REQUIRED"), *OUTPUT_SCHEMA],
        "requires a value in column 'day', which no answer has. Run: ALTER TABLE .* `day` DROP NOT NULL",
    ),
    "another type": (
        [SchemaField("id", "INT64"), SchemaField("answer", "STRING", mode="REPEATED"), *OUTPUT_SCHEMA[1:]],
        r"has column 'answer' of type ARRAY<STRING>, and the answers' is STRING",
    ),
}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        pytest.param(*case, id=name, marks=pytest.mark.full if at else ())
        for at, (name, case) in enumerate(TARGETS.items())
    ],
)
def test_an_incompatible_table_is_refused_before_anything_is_sent(client, sandbox, schema, message):
    load(client, rows(2))
    client.create_table(bigquery.Table(ANSWERS, schema=schema))
    with pytest.raises(JobSpecError, match=message):
        run(asking(sandbox))
    assert sandbox.stats()["billed_answers"] == 0


@pytest.mark.full
def test_a_bucket_in_another_location_is_refused(client):
    load(client, rows(2))
    with storage.Client() as made:
        made.create_bucket("tokyo", location="ASIA-NORTHEAST1")
        bucket = made.get_bucket("tokyo")
    assert (bucket.location, bucket.location_type) == ("ASIA-NORTHEAST1", "region")
    far = bigquery.Dataset(f"{PROJECT}.far")
    far.location = "europe-west1"
    client.create_dataset(far)
    with pytest.raises(JobSpecError, match=r"bucket 'tokyo' is in ASIA-NORTHEAST1, .* in europe-west1"):
        run(spec_of(sink={**TO_TABLE, "table": f"{PROJECT}.far.answers"}, state_uri="gs://tokyo/state"))


@pytest.mark.full
def test_missing_credentials_are_one_message(client, sandbox, monkeypatch):
    load(client, rows(2))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent.json")
    with pytest.raises(JobSpecError, match=r"`sink.table` .* needs Google credentials: .*nonexistent\.json"):
        run(spec_of())


# Errors after the first request to the model


@pytest.mark.full
def test_transient_errors_of_bigquery_are_retried(client, sandbox):
    load(client, rows(5))
    fault = Fault(kind="error", http_status=503)
    for method in ("tables.get", "jobs.get"):
        sandbox.faults.queue(f"bigquery.{method}", fault)
    sandbox.faults.when("bigquery.jobs.insert", "llmbeam-load", fault, times=1)
    sandbox.faults.when("bigquery.jobs.insert", "llmbeam-merge", Fault(kind="disconnect"), times=1)
    run(spec_of())
    assert len(table_of(client)) == 5
    assert len(jobs_of(client, "merge")) == 1


def test_an_aborted_merge_keeps_the_old_answers_and_the_retry_sends_nothing(client, sandbox):
    load(client, rows(20))
    make_answers(client)
    spec = asking(sandbox, source=FROM_QUERY)
    sandbox.faults.when("bigquery.jobs.insert", "llmbeam-merge", Fault(kind="abort"), times=1)
    with pytest.raises(
        JobFailedError, match=r"Error encountered .* The table is unchanged\. .* sends nothing to the model"
    ):
        run(spec)
    assert {key: row["answer"] for key, row in table_of(client).items()} == {0: "old"}
    billed = sandbox.stats()["bigquery_bytes_billed"]
    change(client, f"UPDATE `{ROWS}` SET text = 'changed' WHERE id = 3")
    run(spec)
    assert set(table_of(client)) == set(range(20))
    assert sandbox.stats()["billed_answers"] == 20, "the retry reads what the first try has read"
    assert len(jobs_of(client, "query")) == 1
    assert sandbox.stats()["bigquery_bytes_billed"] > billed


@pytest.mark.parametrize(
    "moments", [("merge",), pytest.param(("query", "extract", "load"), marks=pytest.mark.full)], ids="-".join
)
def test_a_job_killed_with_kill_9_resumes_where_it_was(slow_sandbox, tmp_path, moments):
    kinds = ("query", "extract", "load", "merge")
    with bigquery.Client() as client:
        client.create_dataset("llm")
        load(client, rows(20))
        make_answers(client)
        spec = asking(slow_sandbox, source=FROM_QUERY)
        path = tmp_path / "spec.json"
        path.write_text(spec.model_dump_json())
        for moment in moments:
            kill_at(client, moment, path)
            assert {key: row["answer"] for key, row in table_of(client).items()} == {0: "old"}
        assert run(spec)["rows"] == {"read": 20, "answered": 20, "dead_letter": 0, "skipped": 0}
        assert set(table_of(client)) == set(range(20))
        assert slow_sandbox.stats()["billed_answers"] == 20
        assert {kind: len(jobs_of(client, kind)) for kind in kinds} == dict.fromkeys(kinds, 1)
        assert [table.table_id for table in client.list_tables("llm")] == ["answers", "rows"]


def kill_at(client: bigquery.Client, moment: str, spec: Path) -> None:
    """Runs a job in its own process and kills it while a BigQuery job of the given kind runs."""
    command = [sys.executable, "-m", "airflow_provider_llmbeam.pipeline", f"--spec={spec}"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as child:
        until_job(child, lambda: jobs_of(client, moment))
        child.send_signal(signal.SIGKILL)
