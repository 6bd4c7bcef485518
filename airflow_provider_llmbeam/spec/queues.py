"""Clusters of message queues, and what their sources and sinks have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from airflow_provider_llmbeam.spec.base import FieldFaultError, SpecModel, variable_name


class KafkaCluster(SpecModel):
    """A Kafka cluster, for a source and for a sink.

    Its client settings (`security.protocol`, `sasl.password` and others of librdkafka) are never part of the spec.

    Attributes:
        bootstrap_servers: Brokers, `host:9092,host:9092`. `None`: the client settings name them.
        conn_id: Airflow connection of type `kafka`, used by the operators: its extra is the client settings.
        config_env: Environment variable that holds the client settings as a JSON object, for jobs that no operator
            runs.
    """

    bootstrap_servers: Annotated[str, Field(min_length=1)] | None = None
    conn_id: str | None = None
    config_env: str

    _variable = field_validator("config_env")(variable_name)

    @field_validator("bootstrap_servers")
    @classmethod
    def _hosts(cls, servers: str | None) -> str | None:
        if servers is not None and "@" in servers:
            raise FieldFaultError(
                "", "must be hosts and ports alone, 'host:9092': a password belongs in the connection"
            )
        return servers

    @property
    def shown_servers(self) -> str:
        """The brokers, or what names them, for messages and reports."""
        return self.bootstrap_servers or (
            f"connection {self.conn_id!r}" if self.conn_id else f"${self.config_env}"
        )
