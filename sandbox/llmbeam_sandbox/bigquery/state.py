"""Datasets and tables of BigQuery, kept in an in-memory DuckDB. No HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from llmbeam_sandbox.bigquery.catalog import Dataset, Table, TableId
from llmbeam_sandbox.bigquery.columns import (
    Field,
    TimestampFormat,
    arrow_schema,
    bytes_sql,
    cell,
    duckdb_type,
    field_of,
    quoted,
    type_of,
)
from llmbeam_sandbox.core.checks import check_kms_key
from llmbeam_sandbox.core.clock import Clock
from llmbeam_sandbox.core.rest import RestError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

NEEDS_PACKAGES = "BigQuery in the sandbox needs DuckDB and sqlglot: `pip install duckdb sqlglot` where it runs."
ABORTED = "Error encountered during execution. Retrying may solve the problem."
RESULT = '"llmbeam_result"'
"""Temporary table between a query and its destination."""


class Tables:
    """All datasets and tables. Safe to use from any thread while `lock` is held.

    Args:
        clock: Returns seconds since the epoch, by which tables expire.
    """

    def __init__(self, clock: Clock) -> None:
        self.lock = threading.RLock()
        self._clock = clock
        self._connection: DuckDBPyConnection | None = None
        self._datasets: dict[tuple[str, str], Dataset] = {}

    @property
    def connection(self) -> DuckDBPyConnection:
        """Database, opened on first use.

        Raises:
            RestError: The extra is not installed.
        """
        if self._connection is None:
            try:
                import duckdb
                import sqlglot  # noqa: F401 - so that the first call names the missing package
            except ImportError as error:
                raise RestError(501, NEEDS_PACKAGES, "notImplemented") from error
            self._connection = duckdb.connect(config={"enable_external_access": "false"})
            self._connection.execute("SET TimeZone = 'UTC'")
            # DuckDB must not resolve a missing table among Python's variables.
            self._connection.execute("SET python_enable_replacements = false")
        return self._connection

    def clear(self) -> None:
        """Removes all datasets and tables."""
        with self.lock:
            self._datasets.clear()
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    # Datasets

    def datasets(self, project: str) -> list[Dataset]:
        """Returns the datasets of a project, without hidden ones, whose names begin with "_"."""
        found = (dataset for (owner, name), dataset in sorted(self._datasets.items()) if owner == project)
        return [dataset for dataset in found if not dataset.name.startswith("_")]

    def dataset(self, project: str, name: str) -> Dataset:
        """Returns a dataset.

        Raises:
            RestError: There is none of that name.
        """
        if (project, name) not in self._datasets:
            raise RestError(404, f"Not found: Dataset {project}:{name}", "notFound")
        dataset = self._datasets[project, name]
        for table in [one for one in dataset.tables.values() if self._is_expired(one)]:
            self._drop(dataset, table.id)
        return dataset

    def add_dataset(self, project: str, name: str, fields: Mapping[str, Any]) -> Dataset:
        """Creates a dataset.

        Raises:
            RestError: It exists.
        """
        if (project, name) in self._datasets:
            raise RestError(409, f"Already Exists: Dataset {project}:{name}", "duplicate")
        self.run(f"CREATE SCHEMA {quoted(f'{project}:{name}')}")
        dataset = Dataset(project=project, name=name, created_at=self._clock(), fields=dict(fields))
        self._datasets[project, name] = dataset
        return dataset

    def drop_dataset(self, project: str, name: str, *, with_tables: bool) -> None:
        """Deletes a dataset.

        Raises:
            RestError: There is none of that name, or it has tables.
        """
        if self.dataset(project, name).tables and not with_tables:
            raise RestError(400, f"Dataset {project}:{name} is still in use", "resourceInUse")
        self.run(f"DROP SCHEMA {quoted(f'{project}:{name}')} CASCADE")
        del self._datasets[project, name]

    # Tables

    def has_dataset(self, project: str, name: str) -> bool:
        """Returns whether a dataset exists."""
        return (project, name) in self._datasets

    def find_or_none(self, table: TableId) -> Table | None:
        """Returns a table, if any; also if the dataset is unknown."""
        return self.find(table) if self.has_dataset(table.project, table.dataset) else None

    def touch(self, table: TableId) -> None:
        """Sets the time of the last change of a table to now."""
        self.get(table).modified_at = self._clock()

    def find(self, table: TableId) -> Table | None:
        """Returns a table, if any; raises `RestError` for an unknown dataset."""
        return self.dataset(table.project, table.dataset).tables.get(table.table)

    def get(self, table: TableId, *, in_query: bool = False) -> Table:
        """Returns a table.

        Raises:
            RestError: There is none of that name.
        """
        found = self.find(table)
        if found is None:
            place = " was not found in location US" if in_query else ""
            raise RestError(404, f"Not found: Table {table}{place}", "notFound")
        return found

    def add(self, table: TableId, fields: Mapping[str, Any]) -> Table:
        """Creates an empty table.

        Raises:
            RestError: It exists, the dataset is unknown, or the schema is invalid.
        """
        dataset = self.dataset(table.project, table.dataset)
        if table.table in dataset.tables:
            raise RestError(409, f"Already Exists: Table {table}", "duplicate")
        check_kms_key((fields.get("encryptionConfiguration") or {}).get("kmsKeyName"))
        now = self._clock()
        made = Table(id=table, created_at=now, modified_at=now, fields=dict(fields))
        lifetime = dataset.fields.get("defaultTableExpirationMs")
        if lifetime and "expirationTime" not in made.fields:
            made.fields["expirationTime"] = str(int(now * 1000) + int(lifetime))
        if made.columns:
            self._create(table, made.columns)
        dataset.tables[table.table] = made
        return made

    def add_view(self, table: TableId, fields: Mapping[str, Any], sql: str) -> Table:
        """Creates a view of a query.

        Raises:
            RestError: There is a table of that name, or the dataset is unknown.
        """
        made = self.add(table, {**fields, "schema": {}})
        self.run(f"CREATE VIEW {table.sql} AS {sql}")
        made.fields["schema"] = {"fields": self.shape(f"SELECT * FROM {table.sql}")}
        return made

    def patch(self, table: TableId, fields: Mapping[str, Any]) -> Table:
        """Changes fields; None removes one. A schema may only gain columns.

        Raises:
            RestError: There is no such table, or the schema loses or changes a column.
        """
        found = self.get(table)
        schema = fields.get("schema")
        changed = dict(fields)
        if schema:
            changed["schema"] = {"fields": self._widen(found, schema.get("fields") or [], may_add=True)}
        merged = found.fields | changed
        found.fields = {name: value for name, value in merged.items() if value is not None}
        found.modified_at = self._clock()
        return found

    def drop(self, table: TableId) -> None:
        """Deletes a table; raises `RestError` if there is none of that name."""
        self.get(table)
        self._drop(self.dataset(table.project, table.dataset), table)

    def row_count(self, table: TableId) -> int:
        """Returns the number of rows."""
        if not self.get(table).columns:
            return 0
        return int(self._one(f"SELECT count(*) FROM {table.sql}"))

    def byte_count(self, table: TableId, columns: Iterable[str] | None = None) -> int:
        """Returns the logical bytes of the columns; None means all columns."""
        chosen = None if columns is None else {name.lower() for name in columns}
        sums = [
            bytes_sql(one) for one in self.get(table).columns if chosen is None or one["name"].lower() in chosen
        ]
        return int(self._one(f"SELECT coalesce(sum({' + '.join(sums)}), 0) FROM {table.sql}")) if sums else 0

    def rows(self, table: TableId, *, start: int, size: int, timestamps: TimestampFormat) -> list[dict[str, Any]]:
        """Returns rows in the format of the REST API, in the order in which they were written."""
        columns = self.get(table).columns
        if not columns:
            return []
        found = self.arrow(f"SELECT * FROM {table.sql} LIMIT {size} OFFSET {start}").to_pylist()
        return [{"f": [cell(row[one["name"]], one, timestamps) for one in columns]} for row in found]

    # Writing

    @contextmanager
    def transaction(self, *, is_aborted: bool = False) -> Iterator[None]:
        """Commits all changes of the block, or none.

        Raises:
            RestError: `is_aborted`: the changes were made and rolled back.
        """
        self.run("BEGIN")
        try:
            yield
            if is_aborted:
                raise RestError(503, ABORTED, "backendError")
        except BaseException:
            self.run("ROLLBACK")
            raise
        self.run("COMMIT")

    def write(
        self,
        table: TableId,
        fields: Sequence[Field],
        source: str,
        options: Mapping[str, Any],
        *,
        is_aborted: bool = False,
    ) -> int:
        """Writes the rows of a relation into a table atomically, and returns their number.

        Args:
            table: Table to write, created if it does not exist.
            fields: Schema of the source.
            source: Relation, as SQL.
            options: `writeDisposition` (WRITE_EMPTY unless given), `createDisposition`,
                `schemaUpdateOptions`.
            is_aborted: Whether a fault interrupts it half-way.

        Raises:
            RestError: The dispositions, or the schema, do not allow it.
        """
        found = self.find(table)
        if found is None and options.get("createDisposition") == "CREATE_NEVER":
            raise RestError(404, f"Not found: Table {table}", "notFound")
        disposition = options.get("writeDisposition") or "WRITE_EMPTY"
        if disposition == "WRITE_EMPTY" and found is not None and self.row_count(table):
            raise RestError(409, f"Already Exists: Table {table}", "duplicate")
        is_new = found is None or disposition == "WRITE_TRUNCATE" or not found.columns
        may_add = "ALLOW_FIELD_ADDITION" in (options.get("schemaUpdateOptions") or ())
        with self.transaction(is_aborted=is_aborted):
            if is_new:
                self._create(table, fields)
            elif found is not None:
                columns = self._widen(found, fields, may_add=may_add)
            names = ", ".join(quoted(one["name"]) for one in fields)
            casts = ", ".join(f"CAST({quoted(one['name'])} AS {duckdb_type(one)})" for one in fields)
            count = int(self._one(f"INSERT INTO {table.sql} ({names}) SELECT {casts} FROM {source}"))
        if found is None:
            found = self._register(table)
            if key := (options.get("destinationEncryptionConfiguration") or {}).get("kmsKeyName"):
                found.fields["encryptionConfiguration"] = {"kmsKeyName": key}
        found.fields["schema"] = {"fields": list(fields) if is_new else columns}
        found.modified_at = self._clock()
        if disposition == "WRITE_TRUNCATE":
            found.streamed_rows = 0
        return count

    def append(self, table: TableId, rows: Sequence[Mapping[str, Any]]) -> None:
        """Appends `parsed_row`s to the streaming buffer of a table, where they stay until it is replaced."""
        import pyarrow as pa

        columns = self.get(table).columns
        with self.incoming(pa.Table.from_pylist(list(rows), schema=arrow_schema(columns))) as source:
            self.write(table, columns, source, {"writeDisposition": "WRITE_APPEND"})
        self.get(table).streamed_rows += len(rows)

    @contextmanager
    def incoming(self, rows: Any) -> Iterator[str]:
        """Registers an Arrow table in the database, and yields its name there."""
        self.connection.register("llmbeam_incoming", rows)
        try:
            yield '"llmbeam_incoming"'
        finally:
            self.connection.unregister("llmbeam_incoming")

    @contextmanager
    def result_of(self, sql: str) -> Iterator[list[dict[str, Any]]]:
        """Keeps the result of a query in `RESULT`, and yields its schema."""
        self.run(f"CREATE OR REPLACE TEMP TABLE {RESULT} AS {sql}")
        try:
            yield self.shape(f"SELECT * FROM {RESULT}")
        finally:
            self.run(f"DROP TABLE IF EXISTS {RESULT}")

    def shape(self, sql: str) -> list[dict[str, Any]]:
        """Returns the schema of a query without running it."""
        relation = self.connection.sql(sql)
        return [field_of(name, kind) for name, kind in zip(relation.columns, relation.types, strict=True)]

    def arrow(self, sql: str) -> Any:
        """Returns the result of a query as an Arrow table."""
        return self.connection.sql(sql).to_arrow_table()

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Runs SQL and returns its whole result.

        DuckDB 2.0 refuses other statements on a connection while rows are left to fetch.
        """
        return self.connection.execute(sql).fetchall()

    def _one(self, sql: str) -> Any:
        return self.run(sql)[0][0]

    def _register(self, table: TableId) -> Table:
        now = self._clock()
        made = Table(id=table, created_at=now, modified_at=now)
        self.dataset(table.project, table.dataset).tables[table.table] = made
        return made

    def _create(self, table: TableId, columns: Sequence[Field]) -> None:
        try:
            text = ", ".join(f"{quoted(one['name'])} {duckdb_type(one)}" for one in columns)
        except ValueError as error:
            raise RestError(400, str(error), "invalid") from error
        self.run(f"CREATE OR REPLACE TABLE {table.sql} ({text})")

    def _widen(self, table: Table, fields: Sequence[Field], *, may_add: bool) -> list[Field]:
        """Returns the schema of a table after `fields` were written to it, adding columns if allowed."""
        known = {one["name"]: one for one in table.columns}
        start = f"Provided Schema does not match Table {table.id}."
        for one in fields:
            if one["name"] not in known and not may_add:
                raise RestError(400, f"{start} Cannot add fields (field: {one['name']})", "invalid")
            old = known.get(one["name"])
            if old is not None and type_of(old) != type_of(one):
                change = f"Field {one['name']} has changed type from {type_of(old)} to {type_of(one)}"
                raise RestError(400, f"{start} {change}", "invalid")
        added = [one for one in fields if one["name"] not in known]
        for one in added:
            self.run(f"ALTER TABLE {table.id.sql} ADD COLUMN {quoted(one['name'])} {duckdb_type(one)}")
        return [*table.columns, *added]

    def _drop(self, dataset: Dataset, table: TableId) -> None:
        word = "VIEW" if dataset.tables[table.table].is_view else "TABLE"
        self.run(f"DROP {word} IF EXISTS {table.sql}")
        del dataset.tables[table.table]

    def _is_expired(self, table: Table) -> bool:
        expires = table.fields.get("expirationTime")
        return expires is not None and int(expires) <= self._clock() * 1000
