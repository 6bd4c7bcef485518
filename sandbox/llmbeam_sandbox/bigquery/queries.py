"""Statements of query jobs: their cost, their effects and their results."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llmbeam_sandbox.bigquery.catalog import TableId
from llmbeam_sandbox.bigquery.columns import Field
from llmbeam_sandbox.bigquery.state import RESULT, Tables
from llmbeam_sandbox.bigquery.statements import Statement, read, sql_of
from llmbeam_sandbox.core.rest import RestError

if TYPE_CHECKING:
    import duckdb

MEBIBYTE = 1 << 20
MINIMUM_BILLED_BYTES = 10 * MEBIBYTE
"""Minimum per table that a query reads. Source: docs.cloud.google.com/bigquery/pricing, "on-demand"."""
ANONYMOUS = "_llmbeam_results"
"""Hidden dataset of results without a destination."""
_DML_COUNTS = {"INSERT": "insertedRowCount", "UPDATE": "updatedRowCount", "DELETE": "deletedRowCount"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The effects and cost of a query, as a dry run returns them.

    Attributes:
        statement: Statement of the query.
        processed_bytes: Logical bytes of the columns that it names.
        billed_bytes: `processed_bytes`, rounded as BigQuery bills them.
        columns: Schema of the result; empty without one.
    """

    statement: Statement
    processed_bytes: int
    billed_bytes: int
    columns: list[dict[str, Any]]

    def statistics(self) -> dict[str, Any]:
        """Returns the part of `statistics.query` that is known before the query runs."""
        return {
            "statementType": self.statement.kind,
            "totalBytesProcessed": str(self.processed_bytes),
            "referencedTables": [table.reference() for table in self.statement.references],
            **({"schema": {"fields": self.columns}} if self.columns else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a query.

    Attributes:
        destination: Table of its rows; None without rows.
        columns: Schema of the rows.
        dml: `insertedRowCount`, `updatedRowCount`, `deletedRowCount`; None for other statements.
        operation: Operation of a DDL statement, e.g. "CREATE"; "" for others.
    """

    destination: TableId | None = None
    columns: list[Field] = field(default_factory=list)
    dml: Mapping[str, int] | None = None
    operation: str = ""


class Queries:
    """Runs statements on tables.

    Args:
        tables: Tables that statements read and write; the caller holds their lock.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def estimate(self, project: str, options: Mapping[str, Any]) -> Estimate:
        """Checks a query and returns its cost, without running it.

        Raises:
            RestError: It is invalid, a table is missing, or it costs more than `maximumBytesBilled`.
        """
        text = str(options.get("query") or "")
        statement = read(text, project, options)
        for table in statement.references:
            if not (statement.kind.startswith(("CREATE", "DROP")) and table == statement.target):
                self._tables.get(table, in_query=True)
        references = () if statement.kind == "ALTER_TABLE" else statement.references
        read_tables = [table for table in references if self._tables.find_or_none(table)]
        sizes = [self._tables.byte_count(table, statement.columns) for table in read_tables]
        billed = sum(max(MINIMUM_BILLED_BYTES, math.ceil(size / MEBIBYTE) * MEBIBYTE) for size in sizes)
        limit = options.get("maximumBytesBilled")
        if limit and billed > int(limit):
            message = f"Query exceeded limit for bytes billed: {limit}. {billed} or higher required."
            raise RestError(400, message, "bytesBilledLimitExceeded")
        try:
            columns = self._tables.shape(statement.sql) if statement.kind == "SELECT" else []
            if statement.kind in ("MERGE", "INSERT", "UPDATE", "DELETE"):
                self._tables.run(f"EXPLAIN {statement.sql}")
        except duckdb_error() as error:
            raise _worded(error, statement) from error
        return Estimate(
            statement=statement, processed_bytes=sum(sizes), billed_bytes=billed if sizes else 0, columns=columns
        )

    def run(
        self, statement: Statement, project: str, job_id: str, options: Mapping[str, Any], *, is_aborted: bool
    ) -> Result:
        """Runs a statement atomically.

        Raises:
            RestError: It failed, or a fault interrupted it; nothing was changed.
        """
        try:
            if statement.kind == "SELECT":
                return self._select(statement, project, job_id, options, is_aborted=is_aborted)
            if statement.kind == "ALTER_TABLE":
                return self._add_columns(statement)
            if statement.kind.startswith(("CREATE", "DROP")):
                return self._define(statement, project, is_aborted=is_aborted)
            return self._change(statement, is_aborted=is_aborted)
        except duckdb_error() as error:
            raise _worded(error, statement) from error

    def _select(
        self, statement: Statement, project: str, job_id: str, options: Mapping[str, Any], *, is_aborted: bool
    ) -> Result:
        reference = options.get("destinationTable")
        if reference:
            destination = TableId.of(reference, project)
        else:
            if not self._tables.has_dataset(project, ANONYMOUS):
                self._tables.add_dataset(project, ANONYMOUS, {})
            destination = TableId(project=project, dataset=ANONYMOUS, table=f"anon{job_id.replace('-', '_')}")
        with self._tables.result_of(statement.sql) as columns:
            self._tables.write(destination, columns, RESULT, options, is_aborted=is_aborted)
        return Result(destination=destination, columns=self._tables.get(destination).columns)

    def _change(self, statement: Statement, *, is_aborted: bool) -> Result:
        double = statement.double_match_sql()
        if double and self._tables.run(double):
            message = "UPDATE/MERGE must match at most one source row for each target row"
            raise RestError(400, message, "invalidQuery")
        suffix = " RETURNING merge_action" if statement.kind == "MERGE" else ""
        with self._tables.transaction(is_aborted=is_aborted):
            rows = self._tables.run(statement.sql + suffix)
        self._tables.touch(statement.target)
        if statement.kind == "TRUNCATE_TABLE":
            return Result(operation="TRUNCATE")
        actions = Counter(row[0] for row in rows) if suffix else {statement.kind: rows[0][0]}
        return Result(dml={name: int(actions.get(action, 0)) for action, name in _DML_COUNTS.items()})

    def _define(self, statement: Statement, project: str, *, is_aborted: bool) -> Result:
        tree, tables = statement.tree, self._tables
        if statement.kind.endswith("SCHEMA"):
            name = tree.this.db or tree.this.name
            return self._define_dataset(statement, tree.this.catalog or project, name)
        table = statement.target
        is_there = tables.find(table) is not None
        if statement.kind == "DROP_TABLE":
            if not is_there and tree.args.get("exists"):
                return Result(operation="SKIP")
            tables.drop(table)
            return Result(operation="DROP")
        if is_there and tree.args.get("exists"):
            return Result(operation="SKIP")
        if is_there and not tree.args.get("replace"):
            raise RestError(409, f"Already Exists: Table {table}", "duplicate")
        query = tree.args.get("expression")
        if query is not None:
            with tables.result_of(sql_of(query)) as columns:
                options = {"writeDisposition": "WRITE_TRUNCATE"}
                tables.write(table, columns, RESULT, options, is_aborted=is_aborted)
        else:
            columns = self._declared(tree.this.expressions)
            if is_there:
                tables.drop(table)
            tables.add(table, {"schema": {"fields": columns}})
        return Result(operation="REPLACE" if is_there else "CREATE")

    def _add_columns(self, statement: Statement) -> Result:
        table = statement.target
        there = {one["name"].lower() for one in self._tables.get(table).columns}
        added = []
        for column in statement.tree.args["actions"]:
            if column.name.lower() not in there:
                added.append(column)
            elif not column.args.get("exists"):
                raise RestError(400, f"Column already exists: {column.name}", "invalidQuery")
        declared = self._declared(added) if added else []
        if required := [one["name"] for one in declared if one["mode"] == "REQUIRED"]:
            raise RestError(400, f"Cannot add required column {required[0]} to an existing table", "invalidQuery")
        self._tables.patch(table, {"schema": {"fields": declared}})
        return Result(operation="ALTER")

    def _declared(self, expressions: Sequence[Any]) -> list[dict[str, Any]]:
        from sqlglot import exp

        columns = ", ".join(sql_of(column) for column in expressions)
        self._tables.run(f"CREATE OR REPLACE TEMP TABLE {RESULT} ({columns})")
        found = self._tables.shape(f"SELECT * FROM {RESULT}")
        self._tables.run(f"DROP TABLE {RESULT}")
        for column, one in zip(expressions, found, strict=True):
            if column.find(exp.NotNullColumnConstraint):
                one["mode"] = "REQUIRED"
        return found

    def _define_dataset(self, statement: Statement, project: str, name: str) -> Result:
        is_there = self._tables.has_dataset(project, name)
        word = statement.kind.split("_", 1)[0]
        if is_there == (word == "CREATE") and statement.tree.args.get("exists"):
            return Result(operation="SKIP")
        if word == "CREATE":
            self._tables.add_dataset(project, name, {})
        else:
            self._tables.drop_dataset(project, name, with_tables=bool(statement.tree.args.get("cascade")))
        return Result(operation=word)


def duckdb_error() -> type[duckdb.Error]:
    """Returns the base class of DuckDB's errors; DuckDB is imported on first use."""
    import duckdb

    return duckdb.Error


def _worded(error: duckdb.Error, statement: Statement) -> RestError:
    """Returns an error of DuckDB with the message of BigQuery, where that is known."""
    import re

    text = str(error).split("\n", 1)[0]
    name = re.search(r'[Cc]olumn "([^"]+)" not found|column "([^"]+)"', text)
    if name and "not found" in text:
        column = name[1] or name[2]
        return RestError(400, f"Unrecognized name: {column} at {statement.place_of(column)}", "invalidQuery")
    function = re.search(r"Function with name (\S+) does not exist", text)
    if function:
        place = statement.place_of(function[1])
        return RestError(400, f"Function not found: {function[1]} at {place}", "invalidQuery")
    return RestError(400, text, "invalidQuery")
