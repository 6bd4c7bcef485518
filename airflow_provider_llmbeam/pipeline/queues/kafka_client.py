"""Settings of a client of Kafka, and its errors without secrets."""

from __future__ import annotations

import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError, LLMBeamError, refusal, require_extra
from airflow_provider_llmbeam.pipeline.secrets import known_secrets
from airflow_provider_llmbeam.redaction import redact
from airflow_provider_llmbeam.spec.source import KafkaCluster

#: Timeout of one request to the brokers, in seconds.
TIMEOUT_SECONDS = 30.0
#: Pause between two questions that the cluster cannot answer yet, in seconds.
_PAUSE_SECONDS = 0.2
#: Number of errors kept that a client has reported by itself, and the longest age of a cause, in seconds: a
#: request may fail, after its timeout, by the first of them.
_CAUSES, _CAUSE_SECONDS = 5, 2 * TIMEOUT_SECONDS

#: With "rebootstrap", the default of librdkafka 2.16, `send_offsets_to_transaction` hung beyond its timeout when
#: all brokers had been down, and static members were fenced for good (tried with Apache Kafka 4.4).
_RECOVERY = {"metadata.recovery.strategy": "none"}
#: Settings of a consumer that a connection may hold, and that are warnings of a producer.
_CONSUMER_SETTINGS = frozenset(
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
ResultT = TypeVar("ResultT")


@dataclass
class Client:
    """What every client of a cluster has in common.

    Attributes:
        cluster: The cluster.
        part: Part of the spec that names it.
        remains: What follows an error, for its message.
        causes: The last errors that a client reported by itself, e.g. that a password is wrong, with their times.
    """

    cluster: KafkaCluster
    part: Literal["source", "sink"]
    remains: str = JobSpecError.remains
    causes: deque[tuple[float, Any]] = field(default_factory=lambda: deque(maxlen=_CAUSES))

    def settings(self) -> dict[str, Any]:
        """Returns the settings of a consumer.

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

        def note(error: Any) -> None:
            self.causes.append((time.monotonic(), error))

        return {**_RECOVERY, **given, "error_cb": note, "logger": logger}

    def producer_settings(self) -> dict[str, Any]:
        """Returns the settings of a producer, or of an administrator; see `settings`."""
        return {name: value for name, value in self.settings().items() if name not in _CONSUMER_SETTINGS}

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
        cause = cause_of(error, tuple(self.causes), time.monotonic())
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


def cause_of(error: Any, causes: Iterable[tuple[float, Any]], now: float) -> Any:
    """Returns the cause of an error: the newest permanent one that was reported lately, or else the newest one.

    Args:
        error: The error; its own cause if nothing was reported, or if it alone is permanent.
        causes: Errors that the client has reported by itself, the oldest first, each with its time.
        now: The time.
    """
    known = [error, *(cause for at, cause in causes if now - at <= _CAUSE_SECONDS)]
    return next(filter(is_permanent, reversed(known)), known[-1])


def ask_until_known(ask: Callable[[], ResultT]) -> ResultT:
    """Asks the cluster until it knows: a topic may have no leader at first, and a group no coordinator.

    Raises:
        KafkaException: It refuses, or does not know for `TIMEOUT_SECONDS`.
    """
    from confluent_kafka import KafkaException

    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            return ask()
        except KafkaException as raised:
            if is_permanent(raised.args[0]) or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_SECONDS)


def client_package(part: str, remains: str = JobSpecError.remains) -> Any:
    """Imports the client.

    Raises:
        JobSpecError: It is not installed.
    """
    with require_extra(f"A {part} of type 'kafka'", "kafka", remains):
        import confluent_kafka
    return confluent_kafka
