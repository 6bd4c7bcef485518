"""Rows of a BigQuery table or query, exported once."""

from __future__ import annotations

import base64
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import apache_beam as beam
from google.cloud import bigquery

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.bigquery_jobs import (
    before_the_model,
    check_bucket,
    connect,
    encrypted,
    read_json,
    reference_of,
    run_once,
    run_with_recorded_id,
    size_text,
    write_json,
)
from airflow_provider_llmbeam.pipeline.elements import Row
from airflow_provider_llmbeam.pipeline.sources import files
from airflow_provider_llmbeam.spec.source import BigQuerySource

_log = logging.getLogger("llmbeam")

_CURRENT, _BEGUN = "current.json", "begun.json"
#: How long an export that no run has made is read, in seconds: a run of the next day reads current rows.
_VALID_SECONDS = 86_400.0
_PLAIN = frozenset({str, int, float, bool, type(None)})

# Avro, as all types survive in it: TIMESTAMP is a time in UTC, DATETIME, JSON and GEOGRAPHY (WKT) are text. In
# Parquet TIMESTAMP cannot be told from DATETIME (both are `isAdjustedToUTC = false`), GEOGRAPHY is WKB, and JSON
# is not documented. Source: docs.cloud.google.com/bigquery/docs/exporting-data, "Avro/Parquet export details".
_EXTRACT = bigquery.ExtractJobConfig(  # type: ignore[no-untyped-call]
    destination_format="AVRO", compression="DEFLATE", use_avro_logical_types=True
)


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """An export.

    Attributes:
        query: Query to run first; `None` to extract the table itself.
        columns: Names of the columns, in order.
        size: Size, for the log.
        location: Location of the tables.
    """

    query: str | None
    columns: tuple[str, ...]
    size: str
    location: str | None


def read(
    root: beam.Pipeline, source: BigQuerySource, export_uri: str, kms_key_name: str | None = None
) -> beam.PCollection:
    """Exports the rows, unless an earlier attempt of the job has, and reads the files.

    Rows have the types of JSON: NUMERIC, TIMESTAMP, DATE and TIME are text, BYTES is base64, as in the JSON of
    BigQuery, so that a row of the dead letter that is read again renders the same prompt.

    Args:
        root: The pipeline.
        source: The table or query.
        export_uri: Directory, ends in `/`. Its `current.json` names the finished export, for other attempts of
            this job; `discard` deletes the directory.
        kms_key_name: Key of Cloud KMS that encrypts the result of a query. The files have that of the bucket.

    Raises:
        JobSpecError: BigQuery rejected the request, or a key column is missing.
        JobFailedError: The export failed, perhaps temporarily.
    """
    directory = export(source, export_uri, kms_key_name).directory
    rows = files.read_format(root, f"{directory}*.avro", files.RowFormat("avro"))
    return rows | "JsonValues" >> beam.Map(json_values)


@dataclass(frozen=True, kw_only=True)
class Export:
    """An export.

    Attributes:
        directory: Its directory.
        ran_query: Whether a query was run for it now, which BigQuery bills.
    """

    directory: str
    ran_query: bool


def export(
    source: BigQuerySource, export_uri: str, kms_key_name: str | None = None, *, is_of_run: bool = True
) -> Export:
    """Exports the rows, unless there is an export already.

    Args:
        source: The table or query.
        export_uri: See `read`.
        kms_key_name: See `read`.
        is_of_run: Whether a run of the job reads it, so that its retries do, too; others are read for a day.

    Raises:
        JobSpecError: See `read`.
        JobFailedError: See `read`.
    """
    request = source.model_dump(include={"table", "query"})
    field = "source.table" if source.table else "source.query"
    with before_the_model(f"`{field}`" + (f" {source.table!r}" if source.table else "")):
        current = f"{export_uri}{_CURRENT}"
        if (known := read_json(current)) is not None and known["request"] == request:
            directory, valid_until = str(known["directory"]), known.get("valid_until")
            if valid_until is not None and valid_until < time.time():
                storage.delete(storage.match(f"{directory}**"))
            elif _is_there(directory):
                _check_key(source, known["columns"])
                _log.info("Reading the export of an earlier attempt: %s", directory)
                if is_of_run and valid_until is not None:
                    write_json(current, known | {"valid_until": None})
                return Export(directory=directory, ran_query=False)
        project = source.project or (reference_of(source.table).project if source.table else None)
        with connect(project, source.location) as client:
            plan = _plan(client, source)
            _check_key(source, plan.columns)
            place = "source.export_uri" if source.export_uri else "state_uri"
            check_bucket(export_uri, place, client, plan.location)
            directory = run_with_recorded_id(
                f"{export_uri}{_BEGUN}",
                request,
                lambda work_id: _export(client, source, plan, export_uri, work_id, kms_key_name),
            )
        valid_until = None if is_of_run else time.time() + _VALID_SECONDS
        made = {"directory": directory, "columns": list(plan.columns), "valid_until": valid_until}
        write_json(current, {"request": request, **made})
        storage.delete([f"{export_uri}{_BEGUN}"])
        return Export(directory=directory, ran_query=plan.query is not None)


def discard(export_uri: str) -> None:
    """Deletes an export, its name first, so that the next run reads current rows."""
    for pattern in (_CURRENT, _BEGUN, "**"):
        storage.delete(storage.match(f"{export_uri}{pattern}"))


def json_values(row: Row) -> Row:
    """Returns a row with values of JSON types."""
    return {name: value if type(value) in _PLAIN else _json_value(value) for name, value in row.items()}


def _json_value(value: Any) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Decimal():
            # An export has all 9 or 38 decimals; equal numbers must be equal keys, for all types of columns.
            text = f"{value:f}"
            return text.rstrip("0").rstrip(".") if "." in text else text
        case bytes():
            return base64.b64encode(value).decode()
        case dict():
            return {name: _json_value(inner) for name, inner in value.items()}
        case list():
            return [_json_value(inner) for inner in value]
        case _:
            return str(value)


def _plan(client: bigquery.Client, source: BigQuerySource) -> _Plan:
    """Plans the export; a query gets a dry run, which is free."""
    query = source.query or ""
    if source.table:
        table = client.get_table(reference_of(source.table))
        if table.table_type == "TABLE" and not _has_streamed_rows(table):
            size = f"{size_text(table.num_bytes)}, {table.num_rows:,} rows"
            return _Plan(query=None, columns=_names(table.schema), size=size, location=table.location)
        # A view cannot be extracted.
        query = f"SELECT * FROM `{source.table}`"
    dry = client.query(query, job_config=bigquery.QueryJobConfig(dry_run=True, use_query_cache=False))
    if dry.statement_type not in (None, "SELECT"):
        raise JobSpecError(f"`source.query` must be one SELECT; it is {dry.statement_type}.")
    size = f"a query that reads {size_text(dry.total_bytes_processed)}, which BigQuery bills"
    return _Plan(query=query, columns=_names(dry.schema or ()), size=size, location=dry.location)


def _has_streamed_rows(table: bigquery.Table) -> bool:
    """Returns whether a table has rows that only a query reads.

    Rows that were streamed are in queries within seconds, and in exports after up to 90 minutes. Source:
    docs.cloud.google.com/bigquery/docs/streaming-data-into-bigquery, "Streaming data availability".
    """
    if (streamed := table.streaming_buffer) is None:
        return False
    rows = f"{table.reference} has about {streamed.estimated_rows or 0:,} rows in its streaming buffer"
    if table.require_partition_filter:
        _log.warning("%s, which are not read: name the partitions to read in `source.query`.", rows)
        return False
    _log.info("%s, which an export leaves out, so it is read by a query.", rows)
    return True


def _names(schema: Iterable[bigquery.SchemaField]) -> tuple[str, ...]:
    return tuple(field.name for field in schema)


def _check_key(source: BigQuerySource, columns: Iterable[str]) -> None:
    there = list(columns)
    if missing := [column for column in source.key if column not in there]:
        raise JobSpecError(f"`source.key`: no column {missing[0]!r}; there are {there}.")


def _is_there(directory: str) -> bool:
    return storage.has_match(f"{directory}*.avro")


def _export(
    client: bigquery.Client,
    source: BigQuerySource,
    plan: _Plan,
    export_uri: str,
    work_id: str,
    kms_key_name: str | None,
) -> str:
    directory, location = f"{export_uri}{work_id}/", plan.location
    _log.info("Exporting %s: %s", source.table or "rows", plan.size)
    table: Any = reference_of(source.table) if source.table else None
    if plan.query is not None:
        query, query_id = plan.query, f"llmbeam-query-{work_id}"
        config = encrypted(bigquery.QueryJobConfig(), kms_key_name)
        job = run_once(
            client,
            query_id,
            location,
            lambda: client.query(query, config, job_id=query_id, location=location, job_retry=None),
            "Running the query",
        )
        table = job.destination
        result = client.get_table(table)
        _log.info("Exporting the result: %s, %s rows", size_text(result.num_bytes), f"{result.num_rows:,}")
    extract_id = f"llmbeam-extract-{work_id}"
    run_once(
        client,
        extract_id,
        location,
        lambda: client.extract_table(
            table, f"{directory}*.avro", job_id=extract_id, location=location, job_config=_EXTRACT
        ),
        "Exporting",
    )
    return directory
