"""Airflow connections of a job: what they hold goes to its process in the environment, as a spec has no secret."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlencode

from airflow.providers.common.compat.sdk import AirflowNotFoundException, mask_secret
from airflow.sdk import BaseHook

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.redaction import secrets_of
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.safety import Privacy
from airflow_provider_llmbeam.spec.sink import PostgresSink, Sink
from airflow_provider_llmbeam.spec.source import KafkaCluster

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


def plain_chain(chain: str | Sequence[str] | None) -> str | list[str] | None:
    """Returns the argument `impersonation_chain` as plain JSON."""
    return chain if isinstance(chain, str | None) else list(chain)


def connection_environment(spec: JobSpec) -> dict[str, str]:
    """Returns the environment variables with the secrets of the connections that a job names.

    Raises:
        JobSpecError: A connection does not exist, is of another type, or cannot be passed to another process.
    """
    sinks = spec.sinks_by_field
    stores: dict[str, str] = {}
    for part, sink in sinks.items():
        for variable, dsn in sink_environment(sink, part).items():
            if stores.setdefault(variable, dsn) != dsn:
                raise JobSpecError(
                    f"`{part}.dsn_env`: another sink has another connection, and both name the variable "
                    f"{variable!r}. Name another one."
                )
    kafka = kafka_environment(source=spec.source, **sinks)
    return stores | privacy_environment(spec.safety.privacy) | kafka


def _read_connection(field: str, conn_id: str, kind: str | None, add: str) -> Any:
    """Returns a connection of a type, or of any.

    Raises:
        JobSpecError: It does not exist, or is of another type.
    """
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise JobSpecError(
            f"`{field}`: there is no connection {conn_id!r}. Add it under Admin, Connections, with {add}."
        ) from error
    if kind is not None and connection.conn_type != kind:
        raise JobSpecError(
            f"`{field}`: connection {conn_id!r} is of type {connection.conn_type!r}. Expected {kind!r}."
        )
    return connection


def kafka_environment(**parts: Any) -> dict[str, str]:
    """Returns the environment variables with the client settings of Kafka clusters: the spec holds no secret.

    Airflow masks the passwords in logs.

    Args:
        parts: Source and sinks of a job, by name.

    Returns:
        A variable for each cluster that names a connection.

    Raises:
        JobSpecError: A connection does not exist, is of another type, or cannot be passed to another process.
    """
    found: dict[str, str] = {}
    for part, cluster in parts.items():
        if not isinstance(cluster, KafkaCluster) or cluster.conn_id is None:
            continue
        settings = json.dumps(_settings(part, cluster.conn_id))
        if found.get(cluster.config_env, settings) != settings:
            raise JobSpecError(
                f"`{part}.config_env`: source and sink have different connections, and both name the variable "
                f"{cluster.config_env!r}. Leave it out, or name another one."
            )
        found[cluster.config_env] = settings
        for secret in secrets_of({cluster.config_env: settings}, [cluster.config_env]):
            mask_secret(secret)
    return found


def _settings(part: str, conn_id: str) -> dict[str, Any]:
    """Returns the extra of a connection: in Airflow it holds the settings of librdkafka."""
    settings: dict[str, Any] = _read_connection(
        f"{part}.conn_id", conn_id, "kafka", "the type Apache Kafka"
    ).extra_dejson
    mask_secret(settings)
    if callbacks := sorted(name for name in settings if name.endswith("_cb") or name == "on_commit"):
        raise JobSpecError(
            f"`{part}.conn_id`: connection {conn_id!r} has {callbacks[0]!r}, a function, which cannot be passed "
            "to the process of a job. Expected settings of librdkafka alone, e.g. `sasl.mechanism` and "
            "`sasl.password`."
        )
    return settings


def sink_environment(sink: Sink, part: str = "sink") -> dict[str, str]:
    """Returns the environment variable with the DSN of a PostgreSQL sink's `conn_id`: the spec holds no secret.

    Airflow masks the password in logs.

    Args:
        sink: The sink.
        part: Its name in the spec.

    Returns:
        No variable if the sink is of another type or names no connection.

    Raises:
        JobSpecError: The connection does not exist, or is of another type.
    """
    if not isinstance(sink, PostgresSink) or sink.conn_id is None:
        return {}
    connection = _read_connection(f"{part}.conn_id", sink.conn_id, "postgres", "the type Postgres")
    if connection.extra_dejson.get("iam"):
        raise JobSpecError(
            f"`{part}.conn_id`: connection {sink.conn_id!r} uses a token of AWS IAM (`iam`), which is valid for "
            "15 minutes; a job may run longer. Expected a password."
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


def privacy_environment(privacy: Privacy | None) -> dict[str, str]:
    """Returns the environment variable with the secret of `privacy.key_conn_id`: the spec holds no secret.

    Airflow masks the secret in logs.

    Returns:
        No variable if no connection is named.

    Raises:
        JobSpecError: The connection does not exist, or has no password.
    """
    if privacy is None or privacy.key_conn_id is None:
        return {}
    name = privacy.key_conn_id
    secret = _read_connection("safety.privacy.key_conn_id", name, None, "the secret as its password").password
    if not secret:
        raise JobSpecError(
            f"`safety.privacy.key_conn_id`: connection {name!r} has no password. Expected the secret from which "
            "the key of the placeholders is derived."
        )
    mask_secret(secret)
    return {privacy.key_env: secret}
