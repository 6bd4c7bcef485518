"""Rows of a query through an Airflow connection, without the whole result in memory."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

from airflow.providers.common.compat.sdk import AirflowException, AirflowNotFoundException

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError
from airflow_provider_llmbeam.redaction import redact
from airflow_provider_llmbeam.spec.fields.suggestion import nearest
from airflow_provider_llmbeam.spec.source import SqlSource

Rows = Sequence[Sequence[Any]]

#: Rows of the first fetch, whose size is not known yet, and the most rows and bytes of a later one.
_FIRST_ROWS, _MAX_ROWS, _FETCHED_BYTES = 100, 10_000, 4 * 2**20
#: Class of SQLSTATEs that another try repeats: a syntax error, or a right that is missing (SQL:2023, table 38).
_OF_THE_QUERY = "42"
#: Drivers of MySQL and MariaDB.
_MYSQL = frozenset({"MySQLdb", "mysql", "pymysql"})


class QueryRows:
    """The rows of a query, as they are read.

    Args:
        cursor: The cursor, which has executed the query.
        source: The source.

    Attributes:
        columns: Names of the columns; empty until the first batch is read.
    """

    def __init__(self, cursor: Any, source: SqlSource) -> None:
        self._cursor = cursor
        self._source = source
        self.columns: tuple[str, ...] = ()

    def batches(self) -> Iterator[tuple[Rows, int]]:
        """Yields the rows, some thousand at a time, with their size in bytes.

        Raises:
            JobSpecError: The query has no rows, lacks a column of the key, or has one twice.
        """
        size = _FIRST_ROWS
        while True:
            rows = self._cursor.fetchmany(size)
            if not self.columns:  # psycopg2 knows them once it has fetched
                self.columns = _columns(self._cursor.description, self._source)
            if not rows:
                return
            read = sum(map(_size, zip(*rows, strict=True)))
            yield rows, read
            size = max(1, min(_MAX_ROWS, _FETCHED_BYTES * len(rows) // max(read, 1)))


@contextmanager
def open_query(source: SqlSource, max_rows: int | None = None) -> Iterator[QueryRows]:
    """Executes the query of a source; the connection is closed afterwards, and nothing is committed.

    Args:
        source: The source.
        max_rows: Number of rows of which no more are read.

    Raises:
        JobSpecError: There is no such connection, or it is of no database; or the database refuses the query.
        JobFailedError: The database does not answer, or the query failed for a reason that may pass.
    """
    with _cursor(source) as (cursor, driver):
        if max_rows is not None and driver in _MYSQL:
            # A cursor that is closed reads the rest: of 5 million rows for 17 s (PyMySQL 1.2).
            cursor.execute(f"SET SESSION sql_select_limit = {max_rows}")
        _execute(cursor, _statement(source), source)
        yield QueryRows(cursor, source)


def count_rows(source: SqlSource) -> int:
    """Returns the number of rows of a query; the errors are those of `open_query`."""
    with _cursor(source) as (cursor, _):
        # A comment at the end of the query must not hide what follows.
        _execute(cursor, f"SELECT COUNT(*) FROM (\n{_statement(source)}\n) llmbeam_rows", source)
        return int(cursor.fetchmany(1)[0][0])


def get_hook(source: SqlSource) -> Any:
    """Returns the hook of the connection, made as `SQLExecuteQueryOperator` makes it.

    Raises:
        JobSpecError: There is none.
    """
    from airflow.providers.common.sql.hooks.sql import DbApiHook
    from airflow.providers.common.sql.operators.sql import BaseSQLOperator

    where = f"`source.conn_id` {source.conn_id!r}"
    try:
        hook = BaseSQLOperator.get_hook(source.conn_id, hook_params=dict(source.hook_params))
    except AirflowNotFoundException:
        raise JobSpecError(f"{where}: there is no such connection. Add it under Admin, Connections.") from None
    except (AirflowException, ImportError, TypeError) as error:
        raise JobSpecError(
            f"{where}: its hook cannot be made: {redact(str(error)).rstrip('.')}. Expected a connection of a "
            "database whose Airflow provider is installed, and in `hook_params` only arguments of its hook."
        ) from error
    if not isinstance(hook, DbApiHook):
        raise JobSpecError(
            f"{where}: {type(hook).__name__} reads no SQL. Expected the connection of a database, whose hook is a "
            "`DbApiHook`."
        )
    return hook


@contextmanager
def _cursor(source: SqlSource) -> Iterator[tuple[Any, str]]:
    """Provides a cursor, and the name of its driver."""
    with _errors(source), closing(get_hook(source).get_conn()) as connection:
        driver = type(connection).__module__.partition(".")[0]
        cursor = _open_cursor(connection, driver)
        try:
            yield cursor, driver
        finally:
            with suppress(Exception):  # mysql-connector-python refuses it while there are further rows
                cursor.close()


def _open_cursor(connection: Any, driver: str) -> Any:
    """Returns a cursor of tuples that does not fetch the whole result when the query is executed."""
    match driver:
        case "psycopg":
            rows = importlib.import_module("psycopg.rows")
            return connection.cursor("llmbeam", row_factory=rows.tuple_row)
        case "psycopg2":
            extensions = importlib.import_module("psycopg2.extensions")
            return connection.cursor("llmbeam", cursor_factory=extensions.cursor)
        case "pymysql" | "MySQLdb":
            return connection.cursor(importlib.import_module(f"{driver}.cursors").SSCursor)
        case "redshift_connector":
            return DeclaredCursor(connection.cursor())
        case _:
            return connection.cursor()


class DeclaredCursor:
    """A cursor that the server keeps, for a driver that would fetch the whole result.

    Args:
        cursor: The cursor of the driver, in a transaction.
    """

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor
        self.close = cursor.close

    @property
    def description(self) -> Any:
        """The columns, as PEP 249 describes them."""
        return self._cursor.description

    def execute(self, statement: str, *parameters: Any) -> None:
        """Declares the cursor of a query."""
        self._cursor.execute(f"DECLARE llmbeam CURSOR FOR {statement}", *parameters)

    def fetchmany(self, size: int) -> Rows:
        """Fetches the next rows."""
        self._cursor.execute(f"FETCH FORWARD {size} FROM llmbeam")
        found: Rows = self._cursor.fetchall()
        return found


def _statement(source: SqlSource) -> str:
    return source.query.strip().rstrip(";")


def _execute(cursor: Any, statement: str, source: SqlSource) -> None:
    # Without parameters a driver leaves a % alone, as `DbApiHook.run` does.
    cursor.execute(*(statement, source.parameters) if source.parameters else (statement,))


def _columns(description: Any, source: SqlSource) -> tuple[str, ...]:
    if description is None:
        raise JobSpecError("`source.query`: it returns no rows. Expected one SELECT.")
    columns = tuple(str(column[0]) for column in description)
    if twice := [name for name, count in Counter(columns).items() if count > 1]:
        raise JobSpecError(f"`source.query`: it has two columns {twice[0]!r}; one would hide the other.")
    for column in source.key:
        if column not in columns:
            hint = nearest(column, columns) or f"it has {len(columns)} others"
            end = "" if hint.endswith("?") else "."
            raise JobSpecError(f"`source.key`: the query has no column {column!r}; {hint}{end}")
    return columns


def _size(cells: Sequence[Any]) -> int:
    """Returns about the size of a column in bytes."""
    kinds = {*map(type, cells)}
    if kinds & {dict, list}:
        cells = [*map(str, cells)]
    elif not kinds & {str, bytes, bytearray, memoryview}:
        return 8 * len(cells)
    return sum(len(cell) for cell in cells if hasattr(cell, "__len__"))


@contextmanager
def _errors(source: SqlSource) -> Iterator[None]:
    """Turns errors of a driver into those of a job: PEP 249 names their classes, and every driver has its own."""
    try:
        yield
    except (JobSpecError, JobFailedError):
        raise
    except Exception as error:
        names = {each.__name__ for each in type(error).__mro__}
        if "Error" not in names:
            raise
        state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or _OF_THE_QUERY
        is_final = "ProgrammingError" in names and str(state).startswith(_OF_THE_QUERY)
        kind = JobSpecError if is_final else JobFailedError
        raise kind(
            f"`source.query`, read through connection {source.conn_id!r}: {type(error).__name__}: "
            f"{redact(str(error)).strip().rstrip('.')}. Nothing was sent or billed."
        ) from error
