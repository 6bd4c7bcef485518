"""Messages of Kafka topics: a run writes its range to a file once, and reads that.

So every attempt of a run has the same messages, also when Kafka has deleted them meanwhile, and the workers need
neither the address nor the password of the cluster.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import apache_beam as beam

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.queues import position_file
from airflow_provider_llmbeam.pipeline.queues.kafka_client import (
    TIMEOUT_SECONDS,
    Client,
    client_package,
)
from airflow_provider_llmbeam.pipeline.queues.position import Edges, Offsets, Range, deleted, moved_back, readable
from airflow_provider_llmbeam.pipeline.sources.messages import complete_uri, encode_message, message_rows, text_of
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.source import KafkaSource

_log = logging.getLogger("llmbeam")

#: Time without any message after which reading a range fails, in seconds.
_STALLED_SECONDS = 60.0
#: Number of messages taken from the client at once, and the time to wait for so many, in seconds.
_BATCH, _BATCH_SECONDS = 1000, 0.1


def read(root: beam.Pipeline, spec: JobSpec, source: KafkaSource) -> beam.PCollection:
    """Takes the messages of a run, unless an earlier attempt of it has, and reads them.

    Returns:
        `Row`s, and a `FailedRow` for each message that cannot be parsed.

    Raises:
        JobSpecError: A topic does not exist, the cluster refuses the request, or messages are gone.
        JobFailedError: The cluster does not answer.
    """
    return message_rows(root, take(spec, source), source.value_format)


def take(spec: JobSpec, source: KafkaSource) -> str:
    """Writes the messages of a run to a file, unless an earlier attempt has; returns its address."""
    position = position_file.read_position(spec)
    known = position.known(position_file.run_of(spec), source)
    if known is not None and storage.exists(complete_uri(uri := _messages_uri(spec, known))):
        _log.info("Reading the messages that an earlier attempt has taken: %s", uri)
        return uri
    with _consumer(source) as (consumer, client):
        cluster, edges = _edges(consumer, client, source)
        if position.cluster is not None and cluster is not None and position.cluster != cluster:
            raise JobSpecError(
                f"`source`: the position in {position_file.position_uri(spec)!r} belongs to the Kafka cluster "
                f"{position.cluster!r}, and {source.shown_servers} is {cluster!r}. Name another `state_uri`, or "
                f"delete the file: the job then begins as in its first run."
            )
        if known is None and source.window is not None:
            known = _in_window(consumer, client, source.window, edges)
        taken = known or position.new_range(source, edges)
        _check(spec, source, taken, edges)
        position_file.begin(spec, taken, cluster)
        if taken.left:
            _log.info(
                "The run takes `source.max_messages`, %s offsets; the next one begins with the %s that are left.",
                f"{taken.offsets:,}",
                f"{taken.left:,}",
            )
        return _export(consumer, client, taken, edges, _messages_uri(spec, taken))


def _messages_uri(spec: JobSpec, taken: Range) -> str:
    digest = hashlib.sha256(taken.model_dump_json(exclude={"is_published"}).encode()).hexdigest()[:12]
    return f"{spec.paths.export_uri}messages-{digest}.jsonl"


@contextmanager
def _consumer(source: KafkaSource) -> Iterator[tuple[Any, Client]]:
    kafka, client = client_package("source"), Client(source, "source")
    settings = {
        "group.id": "llmbeam",  # required, and not used: no offset is committed to Kafka
        "isolation.level": "read_committed",
        **client.settings(),
        "auto.offset.reset": "error",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    with client.errors("connecting"):
        consumer = kafka.Consumer(settings)
    try:
        yield consumer, client
    finally:
        consumer.close()


def _edges(consumer: Any, client: Client, source: KafkaSource) -> tuple[str | None, Edges]:
    """Returns the id of the cluster, and the ends of the partitions."""
    from confluent_kafka import TopicPartition

    low: Offsets = {}
    high: Offsets = {}
    cluster: str | None = None
    for topic in source.topic:
        with client.errors(f"asking for topic {topic!r}"):
            metadata = consumer.list_topics(topic, timeout=TIMEOUT_SECONDS)
        cluster, found = metadata.cluster_id or None, metadata.topics[topic]
        if found.error is not None:
            raise client.error(found.error, f"asking for topic {topic!r}")
        low[topic], high[topic] = {}, {}
        for part in sorted(found.partitions):
            with client.errors(f"asking for the offsets of {topic!r}"):
                first, end = consumer.get_watermark_offsets(TopicPartition(topic, part), timeout=TIMEOUT_SECONDS)
            low[topic][part], high[topic][part] = first, end
    return cluster, Edges(low=low, high=high)


def _in_window(consumer: Any, client: Client, window: tuple[int, int], edges: Edges) -> Range:
    """Returns the offsets of the first messages at or after both times; without one, the end of the partition."""
    from confluent_kafka import TopicPartition

    bounds: list[Offsets] = []
    for at in window:
        asked = [TopicPartition(topic, part, at) for topic, parts in edges.high.items() for part in parts]
        with client.errors("asking for the offsets of a time"):
            found = consumer.offsets_for_times(asked, timeout=TIMEOUT_SECONDS)
        offsets: Offsets = {topic: {} for topic in edges.high}
        for each in found:
            if each.error is not None:
                raise client.error(each.error, "asking for the offsets of a time")
            high = edges.high[each.topic][each.partition]
            offsets[each.topic][each.partition] = high if each.offset < 0 else min(each.offset, high)
        bounds.append(offsets)
    return Range(window=window, begin=bounds[0], end=bounds[1])


def _check(spec: JobSpec, source: KafkaSource, taken: Range, edges: Edges) -> None:
    if fault := moved_back(taken, edges):
        raise JobSpecError(
            f"`source.topic`: {fault}: the topic was created again. Name another `state_uri`, or delete "
            f"{position_file.position_uri(spec)!r}: the job then begins as in its first run."
        )
    if not (gone := deleted(taken, edges)):
        return
    message = f"Kafka has deleted {gone:,} offsets of {', '.join(map(repr, source.topic))} before they were read"
    if source.on_deleted == "fail":
        raise JobSpecError(
            f"`source.on_deleted`: {message}: the retention of the topic is shorter than the time between two "
            f"runs. With 'skip' the job goes on with the oldest message that is left."
        )
    _log.warning("%s; `source.on_deleted` is 'skip'.", message)


def _export(consumer: Any, client: Client, taken: Range, edges: Edges, uri: str) -> str:
    _log.info("Taking the messages of %s offsets from Kafka.", f"{taken.offsets:,}")
    count = 0
    with storage.create(uri, is_private=True) as file:
        for message in _messages(consumer, client, taken, edges):
            file.write(encode_message(columns_of(message), message.value()))
            count += 1
    storage.replace(complete_uri(uri), str(count).encode())
    _log.info("Messages taken from Kafka: %s", f"{count:,}")
    return uri


def columns_of(message: Any) -> dict[str, Any]:
    """Returns what is known of a message besides its value, by column."""
    kind, at = message.timestamp()
    key = message.key()
    return {
        "kafka_topic": message.topic(),
        "kafka_partition": message.partition(),
        "kafka_offset": message.offset(),
        "kafka_timestamp": at if kind else None,
        "kafka_key": None if key is None else text_of(key),
    }


def _messages(consumer: Any, client: Client, taken: Range, edges: Edges) -> Iterator[Any]:
    """Reads each message of a range once; offsets without one, of transactions and compaction, are passed over."""
    from confluent_kafka import KafkaError, TopicPartition

    parts = readable(taken, edges)
    ends = {(topic, part): end for topic, part, _, end in parts}
    with client.errors("reading"):
        consumer.assign([TopicPartition(topic, part, first) for topic, part, first, _ in parts])
        deadline = time.monotonic() + _STALLED_SECONDS
        while ends:
            found = consumer.consume(_BATCH, _BATCH_SECONDS)
            if found:
                deadline = time.monotonic() + _STALLED_SECONDS
            elif time.monotonic() > deadline:
                raise JobFailedError(
                    f"`source`: Kafka at {client.cluster.shown_servers} sent no message for "
                    f"{_STALLED_SECONDS:.0f} s, and {len(ends)} partitions are not read to the end of this run's "
                    f"range. {JobSpecError.remains}"
                )
            for message in found:
                place, error = (message.topic(), message.partition()), message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    if error.retriable():
                        continue
                    raise client.error(error, f"reading {place[0]!r}")
                if place not in ends:
                    continue
                if error is not None and message.offset() < ends[place]:
                    raise JobFailedError(
                        f"`source.topic`: partition {place[1]} of {place[0]!r} ends at offset "
                        f"{message.offset():,}, before the end of this run's range, {ends[place]:,}: its newest "
                        "messages were lost in the cluster, or are on a broker that is down. "
                        f"{JobSpecError.remains}"
                    )
                if error is None and message.offset() < ends[place]:
                    yield message
                if message.offset() >= ends[place] - (error is None):
                    del ends[place]
                    consumer.incremental_unassign([TopicPartition(*place)])
