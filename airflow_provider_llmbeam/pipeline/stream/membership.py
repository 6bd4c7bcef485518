"""Who else is in the group of a stream, and what its members agree on."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from airflow_provider_llmbeam.engine.state_version import VERSION, is_newer, newer_state
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.queues.kafka_client import Client, ask_until_known, client_package
from airflow_provider_llmbeam.pipeline.stream.topics import Topics
from airflow_provider_llmbeam.spec.job import JobSpec

_log = logging.getLogger("llmbeam")

#: Timeout of a question to the cluster, in seconds.
_SECONDS = 10.0
#: Fields of the metadata of a position.
_VERSION, _AGREED = "version", "agreed"


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group, as the cluster knows it.

    Attributes:
        name: Its `group.instance.id`.
        machine: Its `client.id`, which is the name of its host, and its address: behind one address there may be
            several hosts, and a connection may set one `client.id` for all.
        partitions: Number of partitions that it owns.
    """

    name: str
    machine: tuple[str, str]
    partitions: int


def read_members(client: Client, group: str) -> list[GroupMember]:
    """Returns the members of a group; none while it gives partitions away.

    Args:
        client: The cluster.
        group: The group.

    Raises:
        KafkaException: The cluster does not tell.
    """
    from confluent_kafka.admin import AdminClient

    admin = AdminClient(client.producer_settings())
    described = admin.describe_consumer_groups([group], request_timeout=_SECONDS)[group].result()
    return [
        GroupMember(
            each.group_instance_id or each.member_id,
            (each.client_id, each.host),
            len(each.assignment.topic_partitions),
        )
        for each in described.members
    ]


def machines_of(members: Collection[GroupMember], name: str) -> float | None:
    """Returns by how many a quota is divided for the machine of a member: all partitions over its own ones.

    So a machine has the share of the quota that it has of the messages, if the partitions have equally many.

    Returns:
        `None` if the machine has no partition.
    """
    here = next((each.machine for each in members if each.name == name), None)
    own = sum(each.partitions for each in members if each.machine == here)
    return sum(each.partitions for each in members) / own if own else None


def agreed_of(spec: JobSpec, topics: Topics) -> dict[str, Any]:
    """Returns what all members of a group must have in common, by the field that says it.

    Model, prompt and package may differ: a fingerprint has all that decides an answer.
    """
    turns = spec.conversation
    return {
        "stream.journal_topic": topics.journal,
        "stream.history_topic": topics.history,
        "conversation.key": None if turns is None else list(turns.key),
        "safety.privacy": turns is not None and spec.safety.privacy is not None,
    }


def metadata_of(agreed: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of the metadata of a position that say what its member agrees on."""
    return {_VERSION: VERSION, _AGREED: dict(agreed)}


def check_agreed(
    metadata: Iterable[str | None], agreed: Mapping[str, Any], group: str, count_others: Callable[[], int]
) -> None:
    """Checks that this process fits what the group has committed.

    Args:
        metadata: Metadata of its positions.
        agreed: What this process agrees on.
        group: The group.
        count_others: Returns the number of its other members.

    Raises:
        JobFailedError: A newer version of the package, with another format, has committed.
        JobSpecError: It does not fit, and other members run.
    """
    for text in dict.fromkeys(filter(None, metadata)):
        found = _read(text)
        if is_newer(found.get(_VERSION)):
            raise newer_state(group, found[_VERSION])
        theirs = found.get(_AGREED)
        if not isinstance(theirs, Mapping):
            continue
        other = [name for name in agreed.keys() & theirs.keys() if agreed[name] != theirs[name]]
        if not other:
            continue
        says = ", ".join(f"`{name}` is {agreed[name]!r}, and was {theirs[name]!r}" for name in sorted(other))
        if others := count_others():
            raise JobSpecError(
                f"This process does not fit the {others} running members of group {group!r}: {says}. They would "
                "not find what it has paid, or its turns. End them first; model, prompt and package may change "
                "while they run."
            )
        _log.warning(
            "Group %r goes on with another state, and what it had under way is asked again: %s.", group, says
        )
        return


def _read(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def read_metadata(client: Client, topics: Topics) -> list[str | None]:
    """Returns the metadata of the positions of a group.

    Args:
        client: The cluster.
        topics: The topics.

    Raises:
        KafkaException: The cluster does not tell.
    """
    kafka = client_package("source")
    # With `read_committed` the cluster answers once the transaction of a dead member has ended, after 10 s.
    own = {"group.id": topics.group, "enable.auto.commit": False, "isolation.level": "read_uncommitted"}
    consumer = kafka.Consumer({**client.settings(), **own})
    try:
        found = consumer.list_topics(timeout=_SECONDS).topics
        parts = [
            kafka.TopicPartition(topic, number) for topic in topics.source for number in found[topic].partitions
        ]
        return [part.metadata for part in ask_until_known(partial(consumer.committed, parts, _SECONDS))]
    finally:
        consumer.close()
