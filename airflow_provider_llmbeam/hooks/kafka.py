"""Passes a `kafka` connection of Airflow to a job, in its environment."""

from __future__ import annotations

import json
from typing import Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException, mask_secret
from airflow.sdk import BaseHook

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.redaction import secrets_of
from airflow_provider_llmbeam.spec.queues import KafkaCluster


def kafka_environment(**parts: Any) -> dict[str, str]:
    """Returns the environment variables with the client settings of Kafka clusters: the spec holds no secret.

    Airflow masks the passwords in logs.

    Args:
        parts: Source and sink of a job, by name.

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
                f"{cluster.config_env!r}. Leave it out, or name another one. Nothing was sent or billed."
            )
        found[cluster.config_env] = settings
        for secret in secrets_of({cluster.config_env: settings}, [cluster.config_env]):
            mask_secret(secret)
    return found


def _settings(part: str, conn_id: str) -> dict[str, Any]:
    """Returns the extra of a connection: in Airflow it holds the settings of librdkafka."""
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise JobSpecError(
            f"`{part}.conn_id`: there is no connection {conn_id!r}. Nothing was sent or billed. Add it under "
            "Admin, Connections, with the type Apache Kafka."
        ) from error
    if connection.conn_type != "kafka":
        raise JobSpecError(
            f"`{part}.conn_id`: connection {conn_id!r} is of type {connection.conn_type!r}. Expected 'kafka'. "
            "Nothing was sent or billed."
        )
    settings: dict[str, Any] = connection.extra_dejson
    mask_secret(settings)
    if callbacks := sorted(name for name in settings if name.endswith("_cb") or name == "on_commit"):
        raise JobSpecError(
            f"`{part}.conn_id`: connection {conn_id!r} has {callbacks[0]!r}, a function, which cannot be passed "
            "to the process of a job. Expected settings of librdkafka alone, e.g. `sasl.mechanism` and "
            "`sasl.password`. Nothing was sent or billed."
        )
    return settings
