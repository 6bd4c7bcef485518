"""The BigQuery sink: loads answers and merges them in one statement."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from google.api_core.exceptions import BadRequest, GoogleAPIError, NotFound
from google.auth.exceptions import GoogleAuthError
from google.cloud import bigquery

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.bigquery_jobs import (
    before_the_model,
    check_bucket,
    check_table_key,
    connect,
    encrypted,
    encryption_of,
    message_of,
    reference_of,
    run_once,
    run_with_recorded_id,
)
from airflow_provider_llmbeam.pipeline.columns import OutputColumns, absent_columns, leave_out
from airflow_provider_llmbeam.pipeline.sinks.parquet import Staged, output_types, read_staged
from airflow_provider_llmbeam.pipeline.sinks.refused import Refuse
from airflow_provider_llmbeam.spec.sink import BigQuerySink

_log = logging.getLogger("llmbeam")

_STAGING_DAYS = 1
_FROM_ARROW = {
    pa.int64(): "INT64",
    pa.float64(): "FLOAT64",
    pa.float32(): "FLOAT64",
    pa.bool_(): "BOOL",
    pa.string(): "STRING",
    pa.binary(): "BYTES",
}
_FROM_REST = {"INTEGER": "INT64", "FLOAT": "FLOAT64", "BOOLEAN": "BOOL", "RECORD": "STRUCT"}
#: Types that are not cast.
_NEVER_CAST = ("ARRAY", "STRUCT")
_PUBLICATION = "publication.json"
#: Texts that FROM_BASE64 takes.
_BASE64 = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
#: Columns whose fractions do not matter to anybody who makes them integers.
_MAY_BE_ROUNDED = frozenset({"llmbeam_latency_seconds"})
#: Columns that differ between runs; a difference in them alone does not update a row.
_NOT_COMPARED = frozenset({"llmbeam_origin"})


def check(sink: BigQuerySink, columns: OutputColumns, staging_uri: str, kms_key_name: str | None = None) -> None:
    """Checks, before anything is sent, that the table can store the answers.

    A dry run of the MERGE without rows, or of the statement that makes the table, has BigQuery check names, types
    and permissions, free of charge.

    Args:
        sink: The sink.
        columns: Columns of the answers.
        staging_uri: Directory of the file to load.
        kms_key_name: Key of Cloud KMS of the job.

    Raises:
        JobSpecError: The dataset does not exist, the table does not fit, or BigQuery rejects the request.
        JobFailedError: BigQuery does not answer now.
    """
    target = reference_of(sink.table)
    outputs = {name: sql_type(kind) for name, kind in output_types(columns).items()}
    wanted = {**dict.fromkeys(columns.from_source, "STRING"), **outputs}
    with before_the_model(f"`sink.table` {sink.table!r}"), connect(sink.project or target.project) as client:
        dataset = client.get_dataset(bigquery.DatasetReference(target.project, target.dataset_id))
        if sink.location and sink.location.upper() != dataset.location.upper():
            raise JobSpecError(
                f"`sink.location` {sink.location!r}: dataset {dataset.dataset_id!r} is in {dataset.location}."
            )
        check_bucket(staging_uri, "state_uri", client, dataset.location)
        table = _find(client, target)
        if table is None:
            names = ", ".join(f"{quote(column)} {kind}" for column, kind in wanted.items())
            statement = f"CREATE TABLE {quote_table(target)} ({names})"
        else:
            check_table_key(table, kms_key_name)
            fields = _fields_of(table)
            absent = leave_out(wanted, fields, sink.table)
            wanted = {column: kind for column, kind in wanted.items() if column not in absent}
            outputs = {column: kind for column, kind in outputs.items() if column not in absent}
            if mismatch := _misfit(table, wanted):
                raise JobSpecError(f"`sink.table` {sink.table!r} {mismatch}")
            kinds = {column: _key_type(_type_of(fields[column.lower()])) for column in columns.from_source}
            staged = {**kinds, **outputs}
            nothing = ", ".join(f"CAST(NULL AS {kind}) AS {quote(column)}" for column, kind in staged.items())
            statement = merge_statement(
                target,
                f"(SELECT {nothing})",
                columns.key,
                _columns(staged, fields, columns.key),
                inserts=_needed(table, wanted) is None,
            )
        config = bigquery.QueryJobConfig(dry_run=True, use_query_cache=False)
        client.query(statement, job_config=config, location=dataset.location)


def publish(
    sink: BigQuerySink,
    key: tuple[str, ...],
    job: str,
    staged: Mapping[int, str],
    refuse: Refuse,
    kms_key_name: str | None = None,
) -> list[str]:
    """Loads the staged file into a staging table and merges it; a repetition changes nothing.

    Args:
        sink: The sink.
        key: Key columns.
        job: Name of the job.
        staged: Address of the file of answer records.
        refuse: Takes each answer with a value that the table does not hold.
        kms_key_name: Key of Cloud KMS that encrypts the tables that are made.

    Returns:
        The address of the table.

    Raises:
        JobFailedError: BigQuery rejects the request or fails. The table is unchanged.
    """
    address = [f"bigquery://{sink.table}"]
    (uri,) = staged.values()
    target = reference_of(sink.table)
    try:
        with connect(sink.project or target.project) as client:
            if not storage.exists(uri):
                client.get_table(target)  # An earlier attempt has published and deleted the file.
                return address
            with storage.open(uri) as file:
                content = read_staged(file)
            if not content.rows:
                _log.info(
                    "No answers for %s", sink.table
                )  # Without rows the types of the key columns are not known.
                return address
            location = client.get_dataset(bigquery.DatasetReference(target.project, target.dataset_id)).location
            merge = _Merge(client, location, target, key, job, uri, content, refuse, kms_key_name)
            run_with_recorded_id(
                f"{uri.rpartition('/')[0]}/{_PUBLICATION}",
                {"job": job, "table": sink.table, "content": content.content},
                merge.run,
            )
    except (GoogleAPIError, GoogleAuthError) as error:
        message = message_of(error) if isinstance(error, GoogleAPIError) else str(error)
        retry = "a retry loads and merges them"
        if isinstance(error, BadRequest):
            retry = f"{retry}, which fails again until the table or the rows have changed"
        raise JobFailedError(
            f"`sink.table` {sink.table!r}: {message} The table is unchanged. The answers are in the journal: "
            f"{retry}, and sends nothing to the model."
        ) from None
    return address


class _Merge:
    """The merge of one staged file into the target."""

    def __init__(
        self,
        client: bigquery.Client,
        location: str,
        target: bigquery.TableReference,
        key: tuple[str, ...],
        job: str,
        uri: str,
        content: Staged,
        refuse: Refuse,
        kms_key_name: str | None,
    ) -> None:
        self._client = client
        self._kms_key_name = kms_key_name
        self._location = location
        self._target = target
        self._key = key
        self._job = job
        self._uri = uri
        self._refuse = refuse
        self._has_refused = False
        self._needed: str | None = None
        self._rows = content.rows
        self._kinds = content.kinds
        self._arrow_types = content.types
        self._types = {column: sql_type(kind) for column, kind in content.types.items()}

    def run(self, work_id: str) -> None:
        """Loads and merges the file and deletes the staging table; idempotent for an id."""
        dataset = bigquery.DatasetReference(self._target.project, self._target.dataset_id)
        staging = dataset.table(f"{self._target.table_id}__llmbeam_{work_id}")
        schema = [_field(column, kind) for column, kind in self._arrow_types.items()]
        load_id, merge_id = f"llmbeam-load-{work_id}", f"llmbeam-merge-{work_id}"
        _log.info("Loading %s answers into a staging table of %s", f"{self._rows:,}", self._target)
        run_once(
            self._client, load_id, self._location, lambda: self._load(load_id, staging, schema), "Loading answers"
        )
        fields = self._target_fields()
        columns = _columns(self._types, fields, self._key)
        # Values of one kind that are staged with the type of the target are still different.
        shared = {column.name for column in columns if column.is_cast or len(self._kinds.get(column.name, ())) > 1}
        rows = Staging(quote_table(staging), self._key, columns, may_share_keys=not shared.isdisjoint(self._key))
        self._refuse_misfits(rows)
        merged = run_once(
            self._client, merge_id, self._location, lambda: self._merge(merge_id, rows), "Merging answers"
        )
        if stats := merged.dml_stats:
            _log.info(
                "Merged into %s: %s rows inserted, %s updated, %s unchanged",
                self._target,
                f"{stats.inserted_row_count:,}",
                f"{stats.updated_row_count:,}",
                f"{self._rows - stats.inserted_row_count - stats.updated_row_count:,}",
            )
        if not self._has_refused:  # else a repetition finds them again, until the table expires
            self._client.delete_table(staging, not_found_ok=True)

    def _load(
        self, job_id: str, staging: bigquery.TableReference, schema: list[bigquery.SchemaField]
    ) -> bigquery.LoadJob:
        # Created before the load, so that it always has an expiry.
        table = self._new_table(staging, schema)
        table.expires = datetime.now(UTC) + timedelta(days=_STAGING_DAYS)
        self._client.create_table(table, exists_ok=True)
        lists = bigquery.ParquetOptions()  # type: ignore[no-untyped-call]
        lists.enable_list_inference = True  # Otherwise a list is a struct of `list` and `element`.
        options: dict[str, Any] = {
            "job_id": job_id,
            "location": self._location,
            "job_config": encrypted(
                bigquery.LoadJobConfig(
                    source_format="PARQUET",
                    schema=schema,
                    write_disposition="WRITE_EMPTY",
                    parquet_options=lists,
                ),
                self._kms_key_name,
            ),
        }
        if self._uri.startswith("gs://"):
            return self._client.load_table_from_uri(self._uri, staging, **options)
        with storage.open(self._uri) as file:
            return self._client.load_table_from_file(file, staging, **options)

    def _new_table(
        self, reference: bigquery.TableReference, schema: Sequence[bigquery.SchemaField]
    ) -> bigquery.Table:
        table = bigquery.Table(reference, schema=schema)
        if self._kms_key_name is not None:
            table.encryption_configuration = encryption_of(self._kms_key_name)
        return table

    def _refuse_misfits(self, staging: Staging) -> None:
        """Refuses the rows that the MERGE leaves out, as it would fail for them or change their values."""
        names, reasons = staging.key, dict[str, str]()
        try:
            for column in staging.columns:
                for key, value in self._select(staging.misfits(column)):
                    reasons[key] = (
                        f"`sink.table` {str(self._target)!r}: column {column.name!r} of type "
                        f"{column.target_type} does not hold {value!r}. Correct the row or alter the column, or "
                        "name a new table, which gets columns of the types of the values."
                    )
            if self._needed is not None:
                for key, _ in self._select(staging.without_row(self._target)):
                    reasons[key] = (
                        f"`sink.table` {str(self._target)!r} has no row with this key, and requires a value in "
                        f"column {self._needed!r}, which no answer has."
                    )
            for key, _ in self._select(staging.same_keys()):
                reasons[key] = (
                    f"`source.key`: rows with different keys, this one is {key}, have one key in table "
                    f"{str(self._target)!r}. Name a new table, which gets columns of the types of the keys."
                )
        except NotFound:  # an earlier attempt has merged all rows, and deleted them
            return
        if not reasons:
            return
        self._has_refused = True
        with storage.open(self._uri) as file, pq.ParquetFile(file) as table:
            keys = (row for batch in table.iter_batches(columns=[*names]) for row in batch.to_pylist())
            for number, row in enumerate(keys):
                if (reason := reasons.get(_identity(row[name] for name in names))) is not None:
                    self._refuse(number, reason)

    def _select(self, statement: str | None) -> Iterator[tuple[str, Any]]:
        """Yields the keys of staged rows, each with the value that follows them."""
        if statement is not None:
            # The keys that it selects are stored for a day, as a table of results.
            config = encrypted(bigquery.QueryJobConfig(), self._kms_key_name)
            for row in self._client.query_and_wait(statement, job_config=config, location=self._location):
                *key, value = row.values()
                yield _identity(key), value

    def _merge(self, job_id: str, staging: Staging) -> bigquery.QueryJob:
        statement = merge_statement(
            self._target, staging.fitting(), self._key, staging.columns, inserts=self._needed is None
        )
        return self._client.query(statement, job_id=job_id, location=self._location, job_retry=None)

    def _target_fields(self) -> dict[str, bigquery.SchemaField]:
        """Returns the target columns by name; creates the table if it does not exist.

        A new table has texts for bytes: in Parquet many texts are stored in columns of bytes.
        """
        table = _find(self._client, self._target)
        if table is None:
            types = {
                name: pa.string() if pa.types.is_binary(kind) else kind for name, kind in self._arrow_types.items()
            }
            schema = [_field(column, kind) for column, kind in types.items()]
            table = self._client.create_table(self._new_table(self._target, schema), exists_ok=True)
        fields = _fields_of(table)
        absent = leave_out(self._types, fields, str(self._target))
        self._types = {column: kind for column, kind in self._types.items() if column not in absent}
        if mismatch := _misfit(table, self._types):
            raise JobFailedError(
                f"`sink.table` {str(self._target)!r} {mismatch} The table is unchanged. The answers are in the "
                "journal: once the table fits, a retry merges them, and sends nothing to the model."
            )
        self._needed = _needed(table, self._types)
        return fields


def _find(client: bigquery.Client, target: bigquery.TableReference) -> bigquery.Table | None:
    try:
        return client.get_table(target)
    except NotFound:
        return None


def _field(column: str, kind: pa.DataType) -> bigquery.SchemaField:
    mode = "NULLABLE"
    if pa.types.is_list(kind):
        mode, kind = "REPEATED", kind.value_type
    if pa.types.is_struct(kind):
        return bigquery.SchemaField(column, "RECORD", mode, fields=[_field(one.name, one.type) for one in kind])
    return bigquery.SchemaField(column, _FROM_ARROW[kind], mode)


def sql_type(kind: pa.DataType) -> str:
    """Returns the type of a staged column in GoogleSQL."""
    if pa.types.is_list(kind):
        return f"ARRAY<{sql_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{quote(field.name)} {sql_type(field.type)}' for field in kind)}>"
    return _FROM_ARROW[kind]


def _misfit(table: bigquery.Table, wanted: Mapping[str, str]) -> str:
    """Returns why a table cannot store the answers; an empty text if it can."""
    if table.table_type != "TABLE":
        return f"is a {table.table_type}; the answers need a table."
    there = {name: _type_of(field) for name, field in _fields_of(table).items()}
    if missing := {column: kind for column, kind in wanted.items() if column.lower() not in there}:
        added = ", ".join(f"ADD COLUMN {quote(column)} {kind}" for column, kind in missing.items())
        return (
            f"has {absent_columns([*missing])}, which every answer has. "
            f"Let the job make a table of its own, or run: ALTER TABLE {quote_table(table.reference)} {added};"
        )
    for column, kind in wanted.items():
        other = there[column.lower()]
        if other != kind and (other.startswith(_NEVER_CAST) or kind.startswith(_NEVER_CAST)):
            return f"has column {column!r} of type {other}, and the answers' is {kind}."
    if (needed := _needed(table, wanted)) and not table.num_rows:
        return (
            f"requires a value in column {needed!r}, which no answer has. Run: ALTER TABLE "
            f"{quote_table(table.reference)} ALTER COLUMN {quote(needed)} DROP NOT NULL;"
        )
    return ""


def _needed(table: bigquery.Table, wanted: Iterable[str]) -> str | None:
    """Returns a column without which a table takes no new row; it keeps its value in a row that is updated."""
    names = {column.lower() for column in wanted}
    needed = (
        field.name
        for field in table.schema
        if field.mode == "REQUIRED" and field.name.lower() not in names and not field.default_value_expression
    )
    return next(needed, None)


def _fields_of(table: bigquery.Table) -> dict[str, bigquery.SchemaField]:
    """Returns the columns; their names are case-insensitive in BigQuery."""
    return {field.name.lower(): field for field in table.schema}


def _identity(key: Iterable[Any]) -> str:
    """Returns the key of a row, which Parquet and BigQuery have as the same values."""
    return ", ".join(map(repr, key))


def _type_of(field: bigquery.SchemaField) -> str:
    kind = _FROM_REST.get(field.field_type, field.field_type)
    if kind == "STRUCT":
        kind = f"STRUCT<{', '.join(f'{quote(inner.name)} {_type_of(inner)}' for inner in field.fields)}>"
    return f"ARRAY<{kind}>" if field.mode == "REPEATED" else kind


def _key_type(target_type: str) -> str:
    """Returns the probable type of a staged column of the source, which depends on the rows."""
    return target_type if target_type in ("INT64", "FLOAT64", "BOOL") else "STRING"


def _columns(
    staged: Mapping[str, str], target: Mapping[str, bigquery.SchemaField], key: tuple[str, ...]
) -> list[MergeColumn]:
    fields = {name: target[name.lower()] for name in staged}
    return [
        MergeColumn(
            name,
            kind,
            _type_of(fields[name]),
            is_key=name in key,
            is_required=fields[name].mode == "REQUIRED",
            max_length=fields[name].max_length,
        )
        for name, kind in staged.items()
    ]


@dataclass(frozen=True, slots=True)
class MergeColumn:
    """One column of the answers.

    Attributes:
        name: Name in both tables.
        staged_type: Type in the staging table: `STRING`, `BYTES`, `INT64`, `FLOAT64`, `BOOL`, ARRAY or STRUCT.
        target_type: Type in the target table.
        is_key: Whether it is a column of the key, which is never NULL.
        is_required: Whether the target column is never NULL.
        max_length: Maximum length of a text or of bytes in the target column; `None` without one.
    """

    name: str
    staged_type: str
    target_type: str
    is_key: bool = False
    is_required: bool = False
    max_length: int | None = None

    @property
    def is_cast(self) -> bool:
        """Whether values are cast; every value is JSON, and bytes are text."""
        return self.target_type not in (self.staged_type, "JSON") and (
            (self.staged_type, self.target_type) != ("BYTES", "STRING")
        )

    @property
    def _given(self) -> tuple[str, str]:
        """The staged value, and its type; bytes for a column of another type are text."""
        column = f"S.{quote(self.name)}"
        if self.staged_type == "BYTES" != self.target_type:
            return f"COALESCE(SAFE_CONVERT_BYTES_TO_STRING({column}), TO_BASE64({column}))", "STRING"
        return column, self.staged_type

    @property
    def value(self) -> str:
        """The staged value, as an expression of the target type."""
        column, staged_type = self._given
        match staged_type, self.target_type:
            case staged, target if staged == target:
                return column
            case "STRING", "BYTES":
                return f"FROM_BASE64({column})"  # As the BigQuery source encodes BYTES.
            case "STRING", "JSON":  # a text that is no JSON becomes a JSON string
                parsed = f"SAFE.PARSE_JSON({column}, wide_number_mode=>'round')"
                return f"COALESCE({parsed}, IF({column} IS NULL, NULL, TO_JSON({column})))"
            case _, "JSON":
                return f"TO_JSON({column})"
            case "STRING", target if not self.is_key:  # an empty text is what CSV has for no value
                return f"CAST(NULLIF({column}, '') AS {target})"
            case _, target:
                return f"CAST({column} AS {target})"

    @property
    def does_not_fit(self) -> str | None:
        """The condition that the target column does not hold a staged value; `None` if it holds any."""
        column, staged_type = self._given
        faults = []
        if self.is_cast:
            fitting = f"SAFE_CAST({column} AS {self.target_type})"
            empty = ""
            if staged_type == "STRING":
                if self.target_type == "BYTES":
                    fitting = f"IF(REGEXP_CONTAINS({column}, r'{_BASE64}'), {column}, NULL)"
                elif not self.is_key:  # an empty text becomes NULL
                    empty = f"{column} != '' AND "
            elif self.target_type == "INT64" and staged_type == "FLOAT64" and self.name not in _MAY_BE_ROUNDED:
                fitting = f"NULLIF({fitting} = {column}, FALSE)"  # CAST rounds to the nearest integer.
            faults.append(f"{empty}{column} IS NOT NULL AND {fitting} IS NULL")
        if self.max_length is not None and self.target_type in ("STRING", "BYTES"):
            length = "CHAR_LENGTH" if self.target_type == "STRING" else "BYTE_LENGTH"
            faults.append(f"{column} IS NOT NULL AND {length}({self.value}) > {self.max_length}")
        if self.is_required and not self.is_key:
            faults.append(f"{column} IS NULL")
        return " OR ".join(f"({fault})" for fault in faults) or None

    @property
    def differs(self) -> str:
        """The condition that the target has another value."""
        mine, other = self.value, f"T.{quote(self.name)}"
        if self.target_type.startswith(("JSON", "ARRAY", "STRUCT")):  # These types cannot be compared.
            mine, other = f"TO_JSON_STRING({mine})", f"TO_JSON_STRING({other})"
        return f"{other} IS DISTINCT FROM {mine}"


def merge_statement(
    target: bigquery.TableReference,
    staging: str,
    key: Sequence[str],
    columns: Sequence[MergeColumn],
    *,
    inserts: bool = True,
) -> str:
    """Returns the MERGE: inserts rows with new keys, updates rows that differ, and keeps all others.

    Args:
        target: The target table.
        staging: The staging table or a query, as SQL.
        key: Key columns; never NULL.
        columns: All columns, including the key.
        inserts: Whether rows with new keys are inserted.
    """
    keys = [column for column in columns if column.name in key]
    others = [column for column in columns if column.name not in key]
    same = _same_key(keys)
    differs = " OR ".join(column.differs for column in others if column.name not in _NOT_COMPARED)
    changes = ", ".join(f"{quote(column.name)} = {column.value}" for column in others)
    names = ", ".join(quote(column.name) for column in columns)
    values = ", ".join(column.value for column in columns)
    insertion = f"\nWHEN NOT MATCHED THEN\n  INSERT ({names}) VALUES ({values})" if inserts else ""
    return (
        f"MERGE {quote_table(target)} AS T\nUSING {staging} AS S\nON {same}\n"
        f"WHEN MATCHED AND ({differs}) THEN\n  UPDATE SET {changes}{insertion}"
    )


def _same_key(columns: Iterable[MergeColumn]) -> str:
    return " AND ".join(f"T.{quote(each.name)} = {each.value}" for each in columns if each.is_key)


@dataclass(frozen=True, slots=True)
class Staging:
    """The staged rows, and which of them the target holds.

    Attributes:
        table: The staging table, as SQL.
        key: Key columns.
        columns: All columns, including the key.
        may_share_keys: Whether different staged keys may be one key of the target. The MERGE would insert two rows
            with one key, and fail in every later run with these rows, so none of them is merged.
    """

    table: str
    key: tuple[str, ...]
    columns: Sequence[MergeColumn]
    may_share_keys: bool

    def misfits(self, column: MergeColumn) -> str | None:
        """Returns the query of the keys and the values that a column does not hold; `None` if it holds any."""
        if column.does_not_fit is None:
            return None
        return f"SELECT {self._keys}, S.{quote(column.name)} FROM {self.table} AS S WHERE {column.does_not_fit}"

    def same_keys(self) -> str | None:
        """Returns the query of the keys, and their number, that are one key of the target; `None` without any."""
        if not self.may_share_keys:
            return None
        return f"SELECT {self._keys}, {self._rows_of_key} FROM {self._fitting} QUALIFY {self._rows_of_key} > 1"

    def without_row(self, target: bigquery.TableReference) -> str:
        """Returns the query of the keys, and 1, of which the target has no row."""
        same = f"SELECT 1 FROM {quote_table(target)} AS T WHERE {_same_key(self.columns)}"
        return f"SELECT {self._keys}, 1 FROM {self._fitting} AND NOT EXISTS ({same})"

    def fitting(self) -> str:
        """Returns the rows that the target holds, as SQL."""
        if self.may_share_keys:
            return f"(SELECT S.* FROM {self._fitting} QUALIFY {self._rows_of_key} = 1)"
        return (
            f"(SELECT S.* FROM {self._fitting})" if any(each.does_not_fit for each in self.columns) else self.table
        )

    @property
    def _fitting(self) -> str:
        faults = [each.does_not_fit for each in self.columns if each.does_not_fit is not None]
        return f"{self.table} AS S WHERE NOT ({' OR '.join(faults) or 'FALSE'})"

    @property
    def _keys(self) -> str:
        return ", ".join(f"S.{quote(name)}" for name in self.key)

    @property
    def _rows_of_key(self) -> str:
        """The number of rows with the key of a row; floats cannot be partitioned, and their JSON can."""
        keys = ", ".join(f"TO_JSON_STRING({column.value})" for column in self.columns if column.is_key)
        return f"COUNT(*) OVER (PARTITION BY {keys})"


def quote(name: str) -> str:
    """Returns a name as an identifier of GoogleSQL."""
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def quote_table(table: bigquery.TableReference) -> str:
    """Returns the full name of a table as an identifier of GoogleSQL."""
    return quote(f"{table.project}.{table.dataset_id}.{table.table_id}")
