from __future__ import annotations

import pytest
from pydantic import TypeAdapter

from airflow_provider_llmbeam.integrations.openlineage.names import file_name, query_names, sink_name, source_name
from airflow_provider_llmbeam.spec.sink import Sink
from airflow_provider_llmbeam.spec.source import Source

SINK, SOURCE = TypeAdapter(Sink), TypeAdapter(Source)
VARIABLE = "LLMBEAM_POSTGRES_DSN"
DSN = "postgresql://writer:planted-password@db.example:5433/answers?sslmode=require"


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("gs://b/tickets/today.csv", ("gs://b", "tickets/today.csv")),
        ("gs://b/tickets/2026-*/part-?.jsonl", ("gs://b", "tickets")),
        ("gs://b/out/", ("gs://b", "out")),
        ("gs://b/*.jsonl", ("gs://b", "/")),
        ("s3://b/a/[ab].csv", ("s3://b", "a")),
        ("hdfs://node:8020/rows.csv", ("hdfs://node:8020", "rows.csv")),
        ("/data/rows.csv", ("file", "/data/rows.csv")),
        ("file:///data/out/", ("file", "/data/out")),
        ("/data/*/rows.csv", ("file", "/data")),
        ("/*.csv", ("file", "/")),
    ],
)
def test_a_file_is_named_by_its_bucket_and_path_and_a_glob_by_its_directory(uri, name):
    assert file_name(uri) == name


def test_a_relative_path_is_named_from_the_root(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert file_name("out/") == ("file", f"{tmp_path}/out")


def test_a_source_is_a_file_or_a_table_and_rows_of_the_spec_are_none():
    key = {"key": "id"}
    assert source_name(SOURCE.validate_python({"uri": "gs://b/a.csv", **key})) == ("gs://b", "a.csv")
    table = SOURCE.validate_python({"type": "bigquery", "table": "p:d.t", **key})
    assert source_name(table) == ("bigquery", "p.d.t")
    assert source_name(SOURCE.validate_python({"type": "rows", "rows": [], **key})) is None


def test_a_queue_is_named_if_it_is_one_topic_whose_brokers_are_known():
    kafka = {"type": "kafka", "topic": "t", "bootstrap_servers": "k1:9093"}
    assert source_name(SOURCE.validate_python(kafka)) == ("kafka://k1:9093", "t")
    assert source_name(SOURCE.validate_python(kafka | {"topic": ["t", "u"]})) is None
    pubsub = {"type": "pubsub", "subscription": "projects/p/subscriptions/s"}
    assert source_name(SOURCE.validate_python(pubsub)) == ("pubsub", "subscription:p:s")


def test_the_tables_of_a_query_have_their_project():
    query = "WITH a AS (SELECT * FROM `p.d.t`) SELECT a.* FROM a JOIN d2.u USING (id)"
    assert query_names(query, "q") == [("bigquery", "p.d.t"), ("bigquery", "q.d2.u")]
    assert query_names(query, None) == [("bigquery", "p.d.t")]
    assert query_names("no SQL at all", "q") == []


@pytest.mark.parametrize(
    ("dsn", "name"),
    [
        (DSN, ("postgres://db.example:5433", "answers.public.moods")),
        ("postgresql://db.example", ("postgres://db.example:5432", "postgres.public.moods")),
        ("postgresql://u@%2Ftmp/a", ("postgres://localhost:5432", "a.public.moods")),
        ("host=db.example port=5433 dbname=a password=p", ("postgres://db.example:5433", "a.public.moods")),
        ("user=writer host=/tmp", ("postgres://localhost:5432", "writer.public.moods")),
    ],
)
def test_a_postgres_table_is_named_by_host_port_database_and_schema(dsn, name):
    assert sink_name(SINK.validate_python({"type": "postgres", "table": "moods"}), {VARIABLE: dsn}) == name


def test_a_postgres_table_keeps_its_schema_and_has_no_name_without_a_connection():
    sink = SINK.validate_python({"type": "postgres", "table": "nightly.moods"})
    assert sink_name(sink, {VARIABLE: DSN}) == ("postgres://db.example:5433", "answers.nightly.moods")
    assert sink_name(sink, {"OTHER": DSN}) is None


@pytest.mark.parametrize(
    ("sink", "name"),
    [
        ("gs://b/out", ("gs://b", "out")),
        ({"type": "bigquery", "table": "p.d.t"}, ("bigquery", "p.d.t")),
        ({"type": "milvus", "uri": "http://m.example", "collection": "c"}, ("milvus://m.example:19530", "c")),
        ({"type": "milvus", "uri": "https://m.example:443", "collection": "c"}, ("milvus://m.example:443", "c")),
        ({"type": "milvus", "uri": "/data/v.db", "collection": "c"}, ("file", "/data/v.db/c")),
        ({"type": "kafka", "topic": "t", "bootstrap_servers": "k1:9093,k2:9093"}, ("kafka://k1:9093", "t")),
        ({"type": "kafka", "topic": "t", "bootstrap_servers": "k1"}, ("kafka://k1:9092", "t")),
        ({"type": "kafka", "topic": "t", "conn_id": "queue"}, None),
        ({"type": "pubsub", "topic": "projects/p/topics/t"}, ("pubsub", "topic:p:t")),
    ],
)
def test_each_other_sink_has_a_name(sink, name):
    assert sink_name(SINK.validate_python(sink), {}) == name
