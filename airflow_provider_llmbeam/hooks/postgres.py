"""Passes a `postgres` connection of Airflow to a job, in its environment."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

from airflow.providers.common.compat.sdk import AirflowNotFoundException, mask_secret
from airflow.sdk import BaseHook

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.redaction import secrets_of
from airflow_provider_llmbeam.spec.sink import PostgresSink, Sink

#: Extras for Airflow's own hook; every other one is a parameter of libpq, e.g. `sslmode`.
#: Source: `PostgresHook.ignored_extra_options` of apache-airflow-providers-postgres.
_AIRFLOW_EXTRAS = {
    "aws_conn_id",
    "cluster-identifier",
    "cursor",
    "iam",
    "redshift",
    "redshift-serverless",
    "sqlalchemy_query",
    "sqlalchemy_scheme",
    "workgroup-name",
}


def sink_environment(sink: Sink) -> dict[str, str]:
    """Returns the environment variable with the DSN of a PostgreSQL sink's `conn_id`: the spec holds no secret.

    Airflow masks the password in logs.

    Returns:
        No variable if the sink is of another type or names no connection.

    Raises:
        JobSpecError: The connection does not exist, or is of another type.
    """
    if not isinstance(sink, PostgresSink) or sink.conn_id is None:
        return {}
    try:
        connection = BaseHook.get_connection(sink.conn_id)
    except AirflowNotFoundException as error:
        raise JobSpecError(
            f"`sink.conn_id`: there is no connection {sink.conn_id!r}. Nothing was sent or billed. Add it under "
            "Admin, Connections, with the type Postgres."
        ) from error
    if connection.conn_type != "postgres":
        raise JobSpecError(
            f"`sink.conn_id`: connection {sink.conn_id!r} is of type {connection.conn_type!r}. Expected "
            "'postgres'. Nothing was sent or billed."
        )
    if connection.extra_dejson.get("iam"):
        raise JobSpecError(
            f"`sink.conn_id`: connection {sink.conn_id!r} uses a token of AWS IAM (`iam`), which is valid for 15 "
            "minutes; a job may run longer. Expected a password. Nothing was sent or billed."
        )
    dsn = _dsn(connection)
    # In the DSN the password is percent-encoded; an extra may be a password, too, e.g. `sslpassword`.
    for secret in (dsn, *secrets_of({sink.dsn_env: dsn})):
        mask_secret(secret)
    mask_secret(connection.extra_dejson)
    return {sink.dsn_env: dsn}


def _dsn(connection: Any) -> str:
    user = quote(connection.login or "", safe="")
    password = f":{quote(connection.password, safe='')}" if connection.password else ""
    host = quote(connection.host or "", safe="")
    address = f"{user}{password}@{host}{f':{connection.port}' if connection.port else ''}"
    extras = {
        name: int(value) if isinstance(value, bool) else value
        for name, value in connection.extra_dejson.items()
        if name not in _AIRFLOW_EXTRAS
    }
    query = urlencode(extras, quote_via=quote)
    return f"postgresql://{address}/{quote(connection.schema or '', safe='')}{f'?{query}' if query else ''}"
