"""What a user runs to remove rows from sinks that this package does not rewrite."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_llmbeam.pipeline.bigquery_jobs import reference_of
from airflow_provider_llmbeam.pipeline.measure.forget.keys import key_values, typed_rows
from airflow_provider_llmbeam.pipeline.records import encode_key
from airflow_provider_llmbeam.pipeline.sinks.bigquery import quote, quote_table
from airflow_provider_llmbeam.pipeline.sinks.milvus import entity_id
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.sink import (
    BigQuerySink,
    FilesSink,
    KafkaSink,
    MilvusSink,
    PostgresSink,
    PubSubSink,
)


def statement(spec: JobSpec, keys: Sequence[str]) -> str | None:
    """Returns the statement that removes rows from the sink of a job; `None` for a files sink.

    Args:
        spec: The job.
        keys: Keys of the rows, as they were named.
    """
    columns, sink = spec.source.key, spec.sink
    rows = [key_values(key, columns) for key in keys]
    match sink:
        case BigQuerySink():
            where = _where([f"CAST({quote(column)} AS STRING)" for column in columns], rows, _bigquery_text)
            return f"DELETE FROM {quote_table(reference_of(sink.table))} WHERE {where};"
        case PostgresSink():
            where = _where([f"{_postgres_name(column)}::text" for column in columns], rows, _postgres_text)
            return f"DELETE FROM {'.'.join(map(_postgres_name, sink.table.split('.')))} WHERE {where};"
        case MilvusSink():
            ids = [entity_id(row, columns) for row in typed_rows(columns, keys)]
            return f"MilvusClient({sink.uri!r}).delete({sink.collection!r}, ids={ids!r})"
        case KafkaSink():
            names = [encode_key(row, columns).decode().rstrip("\n") for row in typed_rows(columns, keys)]
            return f"for key in {names!r}: Producer({{…}}).produce({sink.topic!r}, None, key)"
        case PubSubSink():
            return (
                "gcloud pubsub subscriptions seek SUBSCRIPTION --time=TIME  # all messages before TIME, for each "
                f"subscription of {sink.topic}"
            )
        case FilesSink():
            return None


def _where(columns: Sequence[str], rows: Sequence[Sequence[str]], text: object) -> str:
    assert callable(text)
    return " OR ".join(
        "(" + " AND ".join(f"{column} = {text(value)}" for column, value in zip(columns, row, strict=True)) + ")"
        for row in rows
    )


def _bigquery_text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
    return f"'{escaped}'"


def _postgres_text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _postgres_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
