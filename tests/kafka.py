"""Kafka for tests, on loopback: the mock brokers of librdkafka in this process, or a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka_broker import Broker, jars_folder

from tests.prism import is_built


class Cluster:
    """A running cluster.

    Attributes:
        servers: Addresses of its brokers.
    """

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self._producer = Producer({"bootstrap.servers": servers, "log_level": 0})

    def send(self, topic: str, *values: Any, key: str | None = None) -> None:
        """Sends messages to the four partitions in turn; values other than bytes and `None` as JSON."""
        for number, value in enumerate(values):
            content = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
            self._producer.produce(topic, content, key, partition=number % 4)
        assert self._producer.flush(10) == 0

    def create(self, topic: str) -> None:
        """Creates an empty topic."""
        self._producer.list_topics(topic, timeout=10)

    def messages(self, topic: str) -> list[Any]:
        """Returns the messages of a topic."""
        settings = {"group.id": "tests", "enable.partition.eof": True, "log_level": 0}
        consumer = Consumer({"bootstrap.servers": self.servers, **settings})
        parts = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        consumer.assign([TopicPartition(topic, part, 0) for part in parts])
        found: list[Any] = []
        while sum(message.error() is not None for message in found) < len(parts):  # the end of each partition
            found += consumer.consume(1000, 0.1)
        consumer.close()
        return [message for message in found if message.error() is None]


@contextmanager
def kafka_cluster() -> Iterator[Cluster]:
    """Runs a cluster, whose topics come into being with their first message, of four partitions."""
    host = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 0})
    brokers = host.list_topics(timeout=10).brokers.values()
    yield Cluster(",".join(f"{broker.host}:{broker.port}" for broker in brokers))
    del host


def kafka_broker(directory: Path) -> Broker:
    """Returns a broker of Apache Kafka that does not run yet; skips the test without `scripts/build-kafka`."""
    if not is_built(jars := jars_folder()):
        pytest.skip(
            f"there is no broker of Kafka at '{jars}'; `scripts/build-kafka` fetches it, with Java 17 and Maven"
        )
    return Broker(jars, directory)
