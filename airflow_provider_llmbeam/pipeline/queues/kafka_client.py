"""Settings of a client of Kafka, and its errors without secrets."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError, LLMBeamError, refusal, require_extra
from airflow_provider_llmbeam.pipeline.secrets import known_secrets
from airflow_provider_llmbeam.redaction import redact
from airflow_provider_llmbeam.spec.source import KafkaCluster

#: Timeout of one request to the brokers, in seconds.
TIMEOUT_SECONDS = 30.0


#: Settings of a consumer that a connection may hold, and that are warnings of a producer.
CONSUMER_SETTINGS = frozenset(
    {"auto.offset.reset", "enable.auto.commit", "enable.auto.offset.store", "group.id", "isolation.level"}
)
#: Names of the errors of librdkafka that another try repeats.
_PERMANENT = frozenset(
    {
        "_AUTHENTICATION",
        "_INVALID_ARG",
        "_UNKNOWN_TOPIC",
        "CLUSTER_AUTHORIZATION_FAILED",
        "GROUP_AUTHORIZATION_FAILED",
        "INVALID_REPLICATION_FACTOR",
        "INVALID_TRANSACTION_TIMEOUT",
        "MSG_SIZE_TOO_LARGE",
        "SASL_AUTHENTICATION_FAILED",
        "TOPIC_AUTHORIZATION_FAILED",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        "UNKNOWN_TOPIC_OR_PART",
        "UNSUPPORTED_SASL_MECHANISM",
    }
)

logger = logging.getLogger("llmbeam.kafka")


@dataclass
class Client:
    """What every client of a cluster has in common.

    Attributes:
        cluster: The cluster.
        part: Part of the spec that names it.
        remains: What follows an error, for its message.
        causes: Errors that the client reported by itself, e.g. that a password is wrong.
    """

    cluster: KafkaCluster
    part: Literal["source", "sink"]
    remains: str = JobSpecError.remains
    causes: list[Any] = field(default_factory=list)

    def settings(self) -> dict[str, Any]:
        """Returns the settings of a client.

        Raises:
            JobSpecError: The environment variable holds no settings, or no broker is named.
        """
        given = self._given()
        if self.cluster.bootstrap_servers is not None:
            given["bootstrap.servers"] = self.cluster.bootstrap_servers
        if not given.get("bootstrap.servers"):
            raise JobSpecError(
                f"`{self.part}.bootstrap_servers`: this field is needed, as {self.cluster.config_env!r} in the "
                "environment names no `bootstrap.servers`."
            )
        return {**given, "error_cb": self.causes.append, "logger": logger}

    @contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        """Converts the errors of the client in the body.

        Args:
            doing: What the body does, for the message.

        Raises:
            JobSpecError: The cluster refuses it, and would do so again.
            JobFailedError: It failed, perhaps temporarily.
        """
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as raised:
            raise self.error(raised.args[0], doing) from None

    def error(self, error: Any, doing: str) -> LLMBeamError:
        """Returns the error of this package for one of the client, preferably for its cause."""
        cause = next((each for each in self.causes if each.name() in _PERMANENT), error)
        if not is_permanent(cause) and self.causes:
            cause = self.causes[0]
        what = redact(f"{cause.name()}: {cause.str()}".rstrip("."), known_secrets((self.cluster.config_env,)))
        fault = f"`{self.part}`: Kafka at {self.cluster.shown_servers}: {doing} failed: {what}."
        if is_permanent(cause):
            return refusal(fault, self.remains)
        return JobFailedError(f"{fault} {self.remains}")

    def _given(self) -> dict[str, Any]:
        text = os.environ.get(self.cluster.config_env, "").strip()
        if not text:
            return {}
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):  # the value may be a password, and is never quoted
            raise JobSpecError(
                f"`{self.part}.config_env`: the variable {self.cluster.config_env!r} does not hold a JSON object. "
                f'Expected settings of librdkafka, e.g. {{"security.protocol": "SASL_SSL"}}.'
            )
        return found


def is_permanent(error: Any) -> bool:
    """Returns whether another try would repeat an error of the client."""
    return error.name() in _PERMANENT


def client_package(part: str, remains: str = JobSpecError.remains) -> Any:
    """Imports the client.

    Raises:
        JobSpecError: It is not installed.
    """
    with require_extra(f"A {part} of type 'kafka'", "kafka", remains):
        import confluent_kafka
    return confluent_kafka
