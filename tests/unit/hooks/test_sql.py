"""The cursor of a query, and how many rows are fetched at once."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import pytest

from airflow_provider_llmbeam.hooks import sql as module
from airflow_provider_llmbeam.hooks.sql import DeclaredCursor, QueryRows
from airflow_provider_llmbeam.spec import SqlSource

SOURCE = SqlSource(type="sql", conn_id="warehouse", query="SELECT 1", key=("id",))


class Cursor:
    """A cursor with rows of one text."""

    description = (("id",), ("text",))

    def __init__(self, rows, text):
        self._left = rows
        self._text = text
        self.asked = []
        self.close = None

    def fetchmany(self, size):
        self.asked.append(size)
        found = min(size, self._left)
        self._left -= found
        return [(1, self._text)] * found


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("a", [100, 10_000, 10_000]),
        (None, [100, 10_000, 10_000]),
        ("a" * 2**20, [100, 3, 3]),
        ("a" * 2**23, [100, 1, 1]),
    ],
)
def test_as_many_rows_are_fetched_at_once_as_have_4_mib(text, asked):
    cursor = Cursor(10**9, text)
    batches = QueryRows(cursor, SOURCE).batches()
    for _ in asked:
        next(batches)
    assert cursor.asked == asked


class Connection:
    """A connection that returns the arguments of its cursors."""

    def cursor(self, *arguments, **named):
        return arguments, named


@pytest.mark.parametrize("driver", ["pymysql", "MySQLdb"])
def test_a_query_on_mysql_is_read_row_by_row(driver, monkeypatch):
    cursors = ModuleType(f"{driver}.cursors")
    cursors.SSCursor = object()
    monkeypatch.setattr(module.importlib, "import_module", {f"{driver}.cursors": cursors}.__getitem__)
    assert module._open_cursor(Connection(), driver) == ((cursors.SSCursor,), {})


def test_a_query_on_redshift_is_declared():
    connection = SimpleNamespace(cursor=lambda: Cursor(0, ""))
    assert isinstance(module._open_cursor(connection, "redshift_connector"), DeclaredCursor)


def test_another_driver_pages_by_itself():
    assert module._open_cursor(Connection(), "snowflake") == ((), {})
