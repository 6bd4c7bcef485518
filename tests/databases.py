"""Connections of Airflow to SQL databases, and the hooks that the providers of these databases would have."""

from __future__ import annotations

import json
import sqlite3
from urllib.parse import urlsplit

import pytest


@pytest.fixture
def add_connection(monkeypatch):
    """Returns a function that adds a connection to a database by its kind and address."""
    set_hooks(monkeypatch)

    def add(conn_id, kind, address):
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", connection_of(kind, address))

    return add


def connection_of(kind, address):
    """Returns a connection as Airflow reads it from the environment."""
    if "://" not in address:
        return json.dumps({"conn_type": kind, "host": address})
    parts = urlsplit(address)
    fields = {
        "host": parts.hostname,
        "port": parts.port,
        "login": parts.username,
        "password": parts.password or "",
    }
    return json.dumps({"conn_type": kind, "schema": parts.path.lstrip("/"), **fields})


def set_hooks(monkeypatch):
    """Gives the connections of databases hooks, which the tests have without the packages of their providers."""
    import psycopg
    from airflow.models import connection
    from airflow.providers.common.compat.sdk import AirflowException
    from airflow.providers.common.sql.hooks.sql import DbApiHook
    from airflow.sdk import Connection

    class SqliteHook(DbApiHook):
        conn_name_attr = "sqlite_conn_id"

        def get_conn(self):
            return sqlite3.connect(self.connection.host)

    class PostgresHook(DbApiHook):
        conn_name_attr = "postgres_conn_id"

        def __init__(self, *args, application_name="airflow", **kwargs):
            super().__init__(*args, **kwargs)
            self.application_name = application_name

        def get_conn(self):
            found = self.connection
            return psycopg.connect(
                host=found.host,
                port=found.port,
                user=found.login,
                password=found.password,
                dbname=found.schema,
                application_name=self.application_name,
            )

        def get_openlineage_database_info(self, connection):
            from airflow.providers.openlineage.sqlparser import DatabaseInfo

            authority = self.get_openlineage_authority_part(connection, default_port=5432)
            return DatabaseInfo(scheme="postgres", authority=authority, database=connection.schema)

        def get_openlineage_database_dialect(self, connection):
            return "postgres"

        def get_openlineage_default_schema(self):
            return "public"

    class MySqlHook(DbApiHook):
        conn_name_attr = "mysql_conn_id"

        def get_conn(self):
            import pymysql

            found = self.connection
            return pymysql.connect(
                host=found.host, port=found.port, user=found.login, password=found.password, database=found.schema
            )

    hooks = {"sqlite": SqliteHook, "postgres": PostgresHook, "mysql": MySqlHook}

    def get_hook(self, *, hook_params=None):
        if self.conn_type not in hooks:
            raise AirflowException(f"Unknown hook type {self.conn_type!r}")
        return hooks[self.conn_type](self.conn_id, **(hook_params or {}))

    for kind in (Connection, connection.Connection):  # the second one outside a task on Airflow 3.1
        monkeypatch.setattr(kind, "get_hook", get_hook)
