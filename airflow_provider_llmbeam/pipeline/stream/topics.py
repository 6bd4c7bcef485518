"""The topics of a stream job: their names, and whether they are there."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.queues.kafka_client import (
    TIMEOUT_SECONDS,
    Client,
    client_package,
)
from airflow_provider_llmbeam.spec.identity import job_identity
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.sink import KafkaSink
from airflow_provider_llmbeam.spec.source import KafkaSource

_log = logging.getLogger("llmbeam")

#: Largest message of a topic and of a client by default, in bytes, and what a record has besides key and value.
_MESSAGE_BYTES, _OVERHEAD_BYTES = 1_000_000, 1000
_DAY_MILLISECONDS = 86_400_000
_SIZE, _POLICY = "max.message.bytes", "cleanup.policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """Names of what a stream job has in a cluster.

    Attributes:
        source: Topics of the messages.
        answers: Topic of the answers; `None` if they are stored outside Kafka alone.
        dead_letter: Topic of the messages without an answer.
        journal: Topic of what is paid and not committed.
        history: Topic of the conversations; `None` without any.
        pieces: Topic of the pieces of answers; `None` for none.
        metrics: Topic of the increments of the windows; `None` for none.
        group: Consumer group.
    """

    source: tuple[str, ...]
    answers: str | None
    dead_letter: str
    journal: str
    history: str | None
    pieces: str | None = None
    metrics: str | None = None
    group: str

    @classmethod
    def of(cls, spec: JobSpec, source: KafkaSource, sink: KafkaSink | None) -> Topics:
        """Returns those of a job."""
        name, options = f"llmbeam-{job_identity(spec)}", spec.stream
        return cls(
            source=source.topic,
            answers=None if sink is None else sink.topic,
            dead_letter=options.dead_letter_topic or f"{name}-dead-letter",
            journal=options.journal_topic or f"{name}-journal",
            history=None if spec.conversation is None else options.history_topic or f"{name}-history",
            pieces=options.piece_topic or f"{name}-pieces" if options.stream_output else None,
            metrics=options.metrics_topic,
            group=options.group_id or name,
        )


def check_topics(topics: Topics, client: Client, *, creates: bool, ttl_days: float) -> int:
    """Checks the topics, and creates missing ones if it may.

    Args:
        topics: The topics.
        client: The cluster.
        creates: Whether topics may be created.
        ttl_days: Time for which turns of conversations are kept, in days.

    Returns:
        Size of the largest record that all of them take, in bytes.

    Raises:
        JobSpecError: One is missing, or the journal has too few partitions or is not compacted.
        JobFailedError: The cluster does not answer.
    """
    kafka = client_package("source")
    from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

    given = client.producer_settings()
    admin = AdminClient(given)
    with client.errors("asking for topics"):
        found = admin.list_topics(timeout=TIMEOUT_SECONDS).topics
    if missing := [topic for topic in topics.source if topic not in found]:
        raise JobSpecError(f"`source.topic`: there is no topic {', '.join(map(repr, missing))}. Create it.")
    partitions = max(len(found[topic].partitions) for topic in topics.source)
    own = {topics.journal: {_POLICY: "compact"}}
    if topics.history is not None:
        # A conversation without a new turn for that time has none that is in a history.
        own[topics.history] = {_POLICY: "compact,delete", "retention.ms": str(int(ttl_days * _DAY_MILLISECONDS))}
    plain = filter(None, (topics.answers, topics.dead_letter, topics.metrics, topics.pieces))
    wanted: dict[str, dict[str, str]] = {**{topic: {} for topic in plain}, **own}
    lacking = {topic: config for topic, config in wanted.items() if topic not in found}
    if lacking and not creates:
        raise JobSpecError(
            f"There is no topic {', '.join(map(repr, lacking))}. Create it, with {partitions} partitions as the "
            f"source, and {' and '.join(own)} with `cleanup.policy=compact`; or set `stream.create_topics`."
        )
    if lacking:
        new = [NewTopic(topic, num_partitions=partitions, config=config) for topic, config in lacking.items()]
        timeouts = {"operation_timeout": TIMEOUT_SECONDS, "request_timeout": 2 * TIMEOUT_SECONDS}
        for topic, created in admin.create_topics(new, **timeouts).items():
            with client.errors(f"creating topic {topic!r}"):
                try:
                    created.result()
                except kafka.KafkaException as raised:
                    if raised.args[0].code() != kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                        raise
                    continue  # another member has created it just now
            _log.info("Created topic %r with %s partitions.", topic, partitions)
    for topic in own.keys() - lacking.keys():
        if (there := len(found[topic].partitions)) < partitions:
            raise JobSpecError(
                f"Topic {topic!r} has {there} partitions, and the source has {partitions}: it needs as many. Add "
                "partitions to it; what is there stays where it is."
            )
    asked = [ConfigResource(ResourceType.TOPIC, topic) for topic in wanted]
    configs: dict[str, dict[str, Any]] = {}
    for resource, described in admin.describe_configs(asked, request_timeout=TIMEOUT_SECONDS).items():
        try:
            configs[resource.name] = described.result()
        except Exception as error:  # noqa: BLE001 - an account may use a topic without the right to describe it
            _log.warning(
                "The settings of topic %r cannot be read, and are taken for right: %s", resource.name, error
            )
    for topic in own:
        policy = configs.get(topic, {}).get(_POLICY)
        if policy is not None and policy.value not in ("compact", own[topic][_POLICY]):
            raise JobSpecError(
                f"Topic {topic!r} has `cleanup.policy` {policy.value!r}. Expected {own[topic][_POLICY]!r}: Kafka "
                "would delete what is paid and not committed, or keep old conversations."
            )
    sizes = [int(config[_SIZE].value) for config in configs.values() if _SIZE in config]
    return min([int(given.get("message.max.bytes", _MESSAGE_BYTES)), *sizes]) - _OVERHEAD_BYTES
