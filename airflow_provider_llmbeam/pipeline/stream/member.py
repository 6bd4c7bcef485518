"""A member of a consumer group whose answers and positions are committed in transactions of Kafka.

Its functions are called on one thread, and so are the callbacks, during `poll` and `close`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from airflow_provider_llmbeam.exceptions import LLMBeamError, refusal
from airflow_provider_llmbeam.pipeline.queues.kafka_client import (
    TIMEOUT_SECONDS,
    Client,
    ask_until_known,
    client_package,
    is_permanent,
)
from airflow_provider_llmbeam.pipeline.sources.kafka import columns_of
from airflow_provider_llmbeam.pipeline.stream.histories import Histories
from airflow_provider_llmbeam.pipeline.stream.journal import BEGIN, PartitionJournal, begin_of
from airflow_provider_llmbeam.pipeline.stream.membership import (
    GroupMember,
    check_agreed,
    machines_of,
    metadata_of,
    read_members,
    read_metadata,
)
from airflow_provider_llmbeam.pipeline.stream.order import PartitionOrder
from airflow_provider_llmbeam.pipeline.stream.partition import Commit, Incoming, Partition, Place
from airflow_provider_llmbeam.pipeline.stream.topics import Topics
from airflow_provider_llmbeam.spec.source import KafkaSource

_log = logging.getLogger("llmbeam")

#: A dead member's open transaction hides later records from `read_committed` for this time.
_TRANSACTION_MILLISECONDS = 10_000
#: A session of 6 s was shorter than the restart of a broker, and partitions were lost.
_SESSION_MILLISECONDS = 10_000
#: Fetched messages that wait in the client.
_QUEUED_KILOBYTES = 16_384
#: A partition that is resumed waits for the fetch under way.
_FETCH_MILLISECONDS = 100
#: Time to commit or to abort, in seconds: beyond it the cluster has aborted the transaction.
_COMMIT_SECONDS = 20.0
#: Time to read the journals of new partitions, in seconds; a dead member's transaction delays it by ten.
_READ_BACK_SECONDS = 120.0
#: Names of the errors with which each further transaction would be aborted: the group no longer has the member.
_NO_MEMBER = frozenset({"FENCED_INSTANCE_ID", "UNKNOWN_MEMBER_ID"})
_SEPARATOR = ":"  # no name of a topic has one


class RestartError(Exception):
    """The member is fenced, or its client is of no more use: a new one continues from the committed positions."""


class Member:
    """A member of the group.

    Args:
        source: The source.
        client: The cluster.
        topics: The topics.
        max_bytes: Size of the largest record, in bytes.
        name: Name of the member, the same after its restart.
        agreed: What all members of the group have in common, see `agreed_of`.
        versions: Headers of each result: by which version it was answered.
        histories: The conversations; `None` without any.
        on_assigned: Takes new partitions.
        on_revoked: Takes the places of partitions that go to another member; may commit.
        on_lost: Takes the places of partitions that another member has already.
    """

    def __init__(
        self,
        source: KafkaSource,
        client: Client,
        topics: Topics,
        max_bytes: int,
        name: str,
        agreed: Mapping[str, Any],
        versions: Mapping[str, str],
        histories: Histories | None,
        on_assigned: Callable[[Sequence[Partition]], None],
        on_revoked: Callable[[Collection[Place]], None],
        on_lost: Callable[[Collection[Place]], None],
    ) -> None:
        self._kafka = client_package("source")
        self._source, self._client, self._topics, self._max_bytes = source, client, topics, max_bytes
        self._name = f"{topics.group}-{name}"
        self._agreed, self._versions = agreed, dict(versions)
        self._metadata = metadata_of(agreed)
        self._histories = histories
        self._on_assigned, self._on_revoked, self._on_lost = on_assigned, on_revoked, on_lost
        self._paused: frozenset[Place] = frozenset()
        self._producer: Any = None
        self._consumer: Any = None

    def open(self) -> None:
        """Ends what an earlier process of this name has left open, and joins the group, if this one fits it.

        Raises:
            JobSpecError: Members with another state run.
        """
        with self._errors("asking for the positions"):
            metadata = read_metadata(self._client, self._topics)
        check_agreed(metadata, self._agreed, self._topics.group, self._count_others)
        with self._errors("beginning transactions"):
            self._producer = self._kafka.Producer(
                {
                    "compression.type": "lz4",
                    "linger.ms": 1,
                    "batch.size": self._max_bytes,  # the limit of a topic is that of a batch
                    **self._client.producer_settings(),
                    "transactional.id": self._name,
                    "transaction.timeout.ms": _TRANSACTION_MILLISECONDS,
                    "enable.idempotence": True,
                }
            )
            self._producer.init_transactions(TIMEOUT_SECONDS)
        with self._errors("joining the group"):
            self._consumer = self._kafka.Consumer(
                {
                    "partition.assignment.strategy": "cooperative-sticky",
                    "session.timeout.ms": _SESSION_MILLISECONDS,
                    "queued.max.messages.kbytes": _QUEUED_KILOBYTES,
                    "fetch.wait.max.ms": _FETCH_MILLISECONDS,
                    "client.id": socket.gethostname(),  # by which the members of one machine are known
                    **self._client.settings(),
                    "group.id": self._topics.group,
                    "group.instance.id": self._name,
                    "isolation.level": "read_committed",
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                    "auto.offset.reset": "error" if self._source.on_deleted == "fail" else "earliest",
                }
            )
            self._consumer.subscribe(
                list(self._topics.source),
                on_assign=self._assigned,
                on_revoke=self._revoked,
                on_lost=self._lost,
            )

    def close(self) -> None:
        """Closes the clients; the group keeps the place of the member until its session ends."""
        for close in (
            self._consumer and self._consumer.close,
            # Without a timeout it did not return while the broker was stopped.
            self._producer and partial(self._producer.abort_transaction, _COMMIT_SECONDS),
        ):
            if close is not None:
                with contextlib.suppress(Exception):  # a fenced client, or no transaction
                    close()
        self._consumer = self._producer = None
        self._paused = frozenset()

    def poll(self, most: int, seconds: float) -> Iterator[tuple[Place, Incoming | None]]:
        """Yields messages, at most so many; `None` is the end of a partition."""
        with self._errors("reading"):
            first = self._consumer.poll(seconds)
            found = [] if first is None else [first, *self._consumer.consume(max(1, most - 1), 0)]
        for message in found:
            error = message.error()
            if error is None:
                yield (message.topic(), message.partition()), _incoming(message)
            elif error.code() == self._kafka.KafkaError._PARTITION_EOF:
                yield (message.topic(), message.partition()), None
            elif error.code() == self._kafka.KafkaError._AUTO_OFFSET_RESET:
                raise refusal(
                    f"`source.on_deleted`: Kafka has deleted messages of {message.topic()!r}, partition "
                    f"{message.partition()}, before they were read: {error.str()}. With 'skip' the worker goes on "
                    "with the oldest message that is left.",
                    self._client.remains,
                )
            elif error.name() == "_FATAL" or error.fatal():  # seen with `fatal()` False
                raise self._ended(error, "reading")
            elif is_permanent(error):
                raise self._client.error(error, "reading")

    def pause(self, places: frozenset[Place]) -> None:
        """Reads no messages of these partitions, and those of all others."""
        assigned = {(part.topic, part.partition) for part in self._consumer.assignment()}
        with self._errors("pausing"):
            for change, changed in (
                (self._consumer.pause, (places - self._paused) & assigned),
                (self._consumer.resume, (self._paused - places) & assigned),
            ):
                if changed:
                    change([self._kafka.TopicPartition(*place) for place in changed])
        self._paused = places & assigned

    def lags(self, positions: Sequence[tuple[Place, int]]) -> dict[Place, int]:
        """Returns the number of offsets after each of these positions, as far as the client knows."""
        lags: dict[Place, int] = {}
        for place, position in positions:
            with contextlib.suppress(self._kafka.KafkaException):
                _, high = self._consumer.get_watermark_offsets(self._kafka.TopicPartition(*place), cached=True)
                lags[place] = max(0, high - position)
        return lags

    def machines(self) -> float | None:
        """Returns by how many a quota is divided, see `machines_of`; `None` if it is not known now."""
        try:
            return machines_of(self._members(), self._name)
        except (LLMBeamError, RestartError) as error:
            _log.warning("This machine keeps its share of the quota: %s", error)
            return None

    def commit(self, commits: Sequence[Commit], at_ms: int, increment: tuple[bytes, bytes] | None) -> bool:
        """Commits results and positions in one transaction; returns whether it is committed, and not aborted.

        Args:
            commits: What it commits.
            at_ms: Timestamp of the results, in milliseconds.
            increment: Key and value of the record of the metrics; `None` for none.

        Raises:
            JobFailedError: The cluster refuses it, and would do so again.
            RestartError: Whether it is committed is known only to the cluster, or the group has no such member.
        """
        producer = self._producer
        with self._errors("committing answers"):
            try:
                self._send(commits, at_ms, increment)
                group = self._consumer.consumer_group_metadata()
                producer.send_offsets_to_transaction(self._positions(commits), group, _COMMIT_SECONDS)
                producer.commit_transaction(_COMMIT_SECONDS)
            except self._kafka.KafkaException as raised:
                error = raised.args[0]
                if not error.txn_requires_abort() or is_permanent(error) or error.name() in _NO_MEMBER:
                    raise
                _log.warning("A transaction is aborted, and repeated: %s: %s", error.name(), error.str())
                producer.abort_transaction(_COMMIT_SECONDS)
                return False
        return True

    def _send(self, commits: Sequence[Commit], at_ms: int, increment: tuple[bytes, bytes] | None) -> None:
        """Begins a transaction, and sends its records."""
        self._producer.begin_transaction()
        for commit in commits:
            for result in commit.results:
                if result.topic is not None:
                    self._produce(result.topic, result.value, result.key, at_ms=at_ms, headers=self._versions)
            topic, number = commit.partition.place
            for name, state in commit.states.items():
                assert self._topics.history is not None
                self._produce(self._topics.history, state, journal_key(topic, name), number)
            for fingerprint in commit.ended:
                self._produce(self._topics.journal, None, journal_key(topic, fingerprint), number)
        if self._topics.metrics is not None and increment is not None:
            key, value = increment
            self._produce(self._topics.metrics, value, key, at_ms=at_ms)

    def _positions(self, commits: Sequence[Commit]) -> list[Any]:
        return [
            self._kafka.TopicPartition(
                *each.partition.place, each.position, json.dumps({BEGIN: each.begin, **self._metadata})
            )
            for each in commits
        ]

    def _count_others(self) -> int:
        return sum(each.name != self._name for each in self._members())

    def _members(self) -> list[GroupMember]:
        with self._errors("asking for the members of the group"):
            return read_members(self._client, self._topics.group)

    def _produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int = -1,
        *,
        at_ms: int = 0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key, partition, timestamp=at_ms, headers=headers)  # 0: now
            except BufferError:  # the queue of the client is full
                self._producer.poll(0.1)
            else:
                return

    def _assigned(self, consumer: Any, parts: list[Any]) -> None:
        if not parts:
            self._on_assigned(())
            return
        with self._errors("asking for the positions"):
            # Waits for open transactions that contain positions.
            committed = consumer.committed(parts, TIMEOUT_SECONDS)
            for part in committed:
                if part.error is not None:
                    raise self._kafka.KafkaException(part.error)
            begun = [self._begin(consumer, part) for part in committed]
        partitions = self._read_back(begun)
        self._on_assigned(partitions)
        given = [self._kafka.TopicPartition(*each.place, each.order.position) for each in partitions]
        consumer.incremental_assign(given)
        # A partition that was paused when it was lost is paused when it comes back (librdkafka 2.16, tried).
        consumer.resume(given)

    def _begin(self, consumer: Any, part: Any) -> tuple[Place, int, int, int]:
        """Returns a place, its position, the offset at which its journal begins, and its end."""
        low, high = _ends_of(consumer, part)
        if part.offset >= 0:
            return (part.topic, part.partition), part.offset, begin_of(part.metadata), high
        offset = low if self._source.first_run == "earliest" else high
        if self._source.first_run == "latest":  # so that a restart before the first answer begins here, too
            # In a transaction: `Consumer.commit` has no timeout.
            position = self._kafka.TopicPartition(part.topic, part.partition, offset)
            self._producer.begin_transaction()
            self._producer.send_offsets_to_transaction(
                [position], consumer.consumer_group_metadata(), _COMMIT_SECONDS
            )
            self._producer.commit_transaction(_COMMIT_SECONDS)
        return (part.topic, part.partition), offset, 0, high

    def _read_back(self, begun: Sequence[tuple[Place, int, int, int]]) -> list[Partition]:
        """Reads the journals of partitions, and their conversations."""
        settings = {
            **self._client.settings(),
            "group.id": self._topics.group,  # required, and not used
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",  # compaction may have removed the offset
        }
        journals = {place: PartitionJournal(known_until=high) for place, _, _, high in begun}
        first = {
            number: min(begin for place, _, begin, _ in begun if place[1] == number) for (_, number), *_ in begun
        }
        asked = [self._kafka.TopicPartition(self._topics.journal, *each) for each in first.items()]
        if self._topics.history is not None:
            asked += [self._kafka.TopicPartition(self._topics.history, number, 0) for number in first]
        with self._errors("reading the journal"):
            # The watermarks follow the isolation level: those of `read_committed` end at an open transaction.
            ends = self._kafka.Consumer({**settings, "isolation.level": "read_uncommitted"})
            high = {(part.topic, part.partition): _ends_of(ends, part)[1] for part in asked}
            ends.close()
            reader = self._kafka.Consumer({**settings, "isolation.level": "read_committed"})
            try:
                reader.assign(asked)
                left, deadline = (
                    {place for place, end in high.items() if end > 0},
                    time.monotonic() + _READ_BACK_SECONDS,
                )
                while left:
                    if time.monotonic() > deadline:
                        raise RestartError("the journal could not be read to its end")
                    for record in reader.consume(1000, 0.05):
                        self._restore(record, journals)
                        place, is_end = (record.topic(), record.partition()), record.error() is not None
                        if record.offset() + (not is_end) >= high[place]:
                            left.discard(place)
            finally:
                reader.close()
        for (_, number), journal in journals.items():
            journal.end = max(journal.end, high[self._topics.journal, number])
        return [Partition(place, PartitionOrder(position), journals[place]) for place, position, _, _ in begun]

    def _restore(self, record: Any, journals: dict[Place, PartitionJournal]) -> None:
        if (error := record.error()) is not None:
            if error.code() != self._kafka.KafkaError._PARTITION_EOF and not error.retriable():
                raise self._kafka.KafkaException(error)
            return
        topic, _, name = (record.key() or b"").decode("utf-8", "replace").partition(_SEPARATOR)
        place = topic, record.partition()
        if (journal := journals.get(place)) is None:
            return
        if record.topic() == self._topics.journal:
            journal.restore(record.offset(), name, record.value())
        elif self._histories is not None:
            self._histories.put(place, [(name, record.value())], record.timestamp()[1] / 1000)

    def _revoked(self, consumer: Any, parts: list[Any]) -> None:
        places = {(part.topic, part.partition) for part in parts}
        self._on_revoked(places)
        consumer.incremental_unassign(parts)
        self._paused -= places

    def _lost(self, consumer: Any, parts: list[Any]) -> None:
        places = {(part.topic, part.partition) for part in parts}
        self._on_lost(places)
        consumer.incremental_unassign(parts)
        self._paused -= places

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        """Converts the errors of the clients: those that a new client does not have restart the member."""
        try:
            yield
        except self._kafka.KafkaException as raised:
            error = raised.args[0]
            if is_permanent(error):
                raise self._client.error(error, doing) from None
            raise self._ended(error, doing) from None

    def _ended(self, error: Any, doing: str) -> RestartError:
        why = f"{doing} failed: {error.name()}: {error.str()}"
        if "FENCED" in why.upper():
            why += (
                f" (`transactional.id` {self._name!r} is used by another process, or its transaction has reached "
                "its timeout: give each member its own name, `--member`)"
            )
        return RestartError(why)


def _ends_of(consumer: Any, part: Any) -> tuple[int, int]:
    """Returns the first offset of a partition, and the next one."""
    low, high = ask_until_known(partial(consumer.get_watermark_offsets, part, TIMEOUT_SECONDS))
    return low, high


def _incoming(record: Any) -> Incoming:
    columns = columns_of(record)
    at = columns["kafka_timestamp"]
    name = f"{record.topic()}:{record.partition()}:{record.offset()}"
    produced_at = None if at is None else at / 1000
    return Incoming(record.offset(), name, record.key(), produced_at, columns, record.value())


def journal_key(topic: str, fingerprint: str) -> bytes:
    """Returns the key of an entry."""
    return f"{topic}{_SEPARATOR}{fingerprint}".encode()
