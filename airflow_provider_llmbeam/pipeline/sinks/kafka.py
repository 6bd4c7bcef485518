"""The Kafka sink: sends the answers in one transaction."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from typing import Any

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.elements import Row
from airflow_provider_llmbeam.pipeline.queues.kafka_client import (
    TIMEOUT_SECONDS,
    Client,
    client_package,
)
from airflow_provider_llmbeam.pipeline.records import encode_key, encode_record, encode_text, read_records
from airflow_provider_llmbeam.pipeline.sinks.refused import Refuse
from airflow_provider_llmbeam.pipeline.sinks.sent import Unsent, digest_of, find_unsent, remember
from airflow_provider_llmbeam.spec.sink import KafkaSink

_log = logging.getLogger("llmbeam")

#: Timeout of the transaction in the cluster: the largest one that brokers accept by default
#: (`transaction.max.timeout.ms`). One that was killed is aborted then, or when its run is repeated.
_TRANSACTION_MILLISECONDS = 900_000
#: Time to commit or to abort, in seconds; the commit sends all messages that are still in the client.
_COMMIT_SECONDS = 600.0
#: Name of the error for a message beyond the limit of the client, or of the topic.
_TOO_LARGE = "MSG_SIZE_TOO_LARGE"
_KEPT = "The answers are in the journal: a retry sends nothing to the model, and all messages again."


def check(sink: KafkaSink, job: str) -> None:
    """Checks that the topic exists, and that the account may send transactions.

    Args:
        sink: The sink.
        job: Identity of the job.

    Raises:
        JobSpecError: The topic does not exist, or the cluster refuses.
        JobFailedError: The cluster does not answer.
    """
    client = Client(sink, "sink", JobSpecError.remains)
    # Its own id: that of the run would end a transaction of it which is open.
    producer = _producer(client, f"llmbeam-{job}-check")
    with client.errors("asking for topics"):
        topics = producer.list_topics(timeout=TIMEOUT_SECONDS).topics  # a request for one topic could create it
    if sink.topic not in topics:
        raise JobSpecError(
            f"`sink.topic`: there is no topic {sink.topic!r} at {sink.shown_servers}, or the account may not see "
            f"it. Create it, with as many partitions as its readers need."
        )
    with client.errors("beginning transactions"):
        producer.init_transactions(TIMEOUT_SECONDS)


def publish(
    sink: KafkaSink,
    key: tuple[str, ...],
    job: str,
    staged: Mapping[int, str],
    sent_uri: str,
    refuse: Refuse,
) -> list[str]:
    """Sends the staged answers, unless the run has sent them.

    Args:
        sink: The sink.
        key: Key columns.
        job: Identity of the job.
        staged: Address of each file of answer records, as JSON lines.
        sent_uri: File that names what was sent.
        refuse: Takes each answer whose message is larger than the client or the topic allows.

    Returns:
        The address of the topic.

    Raises:
        JobFailedError: The cluster rejected the transaction, which is aborted.
    """
    client = Client(sink, "sink", _KEPT)
    address = f"kafka://{client.settings()['bootstrap.servers']}/{sink.topic}"
    digest = digest_of(address, read_records(staged))
    transaction = _Transaction(client, sink, key, job, refuse)
    with client.errors("sending the answers"):
        while not transaction.send(find_unsent(sent_uri, digest, staged)):
            pass
    if transaction.count or transaction.refused:
        remember(sent_uri, digest, staged, transaction.refused)
        _log.info("Messages sent to %s: %s", address, f"{transaction.count:,}")
    else:
        _log.info("The answers were sent to %s by an earlier attempt.", address)
    return [address]


class _Transaction:
    """One transaction, which is repeated without the messages that the topic refuses.

    The cluster refuses a batch, and names none of its messages: after that each is a batch of its own. As one
    refused message ends a transaction, those that are as large are left out of the next one, too.

    Attributes:
        count: Number of messages sent.
        refused: Positions of the answers that were refused.
    """

    def __init__(self, client: Client, sink: KafkaSink, key: tuple[str, ...], job: str, refuse: Refuse) -> None:
        self._client, self._sink, self._key, self._job, self._refuse = client, sink, key, job, refuse
        self._kafka = client_package("sink", client.remains)
        self._settings: dict[str, Any] = {}
        self._limit = math.inf
        self._is_too_large = False
        self.count = 0
        self.refused: set[int] = set()

    def send(self, answers: Iterable[Unsent]) -> bool:
        """Sends answers; returns whether they are committed; otherwise they are aborted, and to be sent again."""
        self.count, self.refused, self._is_too_large = 0, set(), False
        producer = None
        try:
            for number, record in answers:
                if producer is None:
                    producer = _producer(self._client, f"llmbeam-{self._job}", self._settings)
                    producer.init_transactions(TIMEOUT_SECONDS)
                    producer.begin_transaction()
                self._send(producer, number, record)
            if producer is not None:
                # It sends what is left, and fails if a message was not delivered to all replicas in sync.
                producer.commit_transaction(_COMMIT_SECONDS)
        except self._kafka.KafkaException:
            _abort(producer)
            if not self._is_too_large:
                raise
            self._settings = {"batch.num.messages": 1}
            return False
        except BaseException:
            _abort(producer)
            raise
        return True

    def _send(self, producer: Any, number: int, record: Row) -> None:
        value = encode_record(record).rstrip(b"\n")
        column = self._sink.key
        name = encode_key(record, self._key).rstrip(b"\n") if column is None else encode_text(record[column])
        if len(value) > self._limit:
            self._refuse_size(number, len(value), "the topic accepts")
            return

        def delivered(error: Any, _: Any) -> None:
            if error is not None and error.name() == _TOO_LARGE:
                self._is_too_large = True
                if self._settings:  # the message was a batch
                    self._limit = min(self._limit, len(value) - 1)

        while True:
            try:
                producer.produce(self._sink.topic, value, name, on_delivery=delivered)
            except BufferError:  # the queue of the client is full
                producer.poll(1.0)
            except self._kafka.KafkaException as raised:
                if raised.args[0].name() != _TOO_LARGE:
                    raise
                self._refuse_size(number, len(value), "the client sends")
                return
            else:
                self.count += 1
                return

    def _refuse_size(self, number: int, size: int, more_than: str) -> None:
        self.refused.add(number)
        self._refuse(
            number,
            f"`sink.topic` {self._sink.topic!r}: {_TOO_LARGE}: the answer is a message of {size:,} bytes, more "
            f"than {more_than}. Set `message.max.bytes` in the settings of the connection, and "
            "`max.message.bytes` of the topic, to more, or leave columns out of `sink.passthrough`.",
        )


def _producer(client: Client, transactional_id: str, own: Mapping[str, Any] | None = None) -> Any:
    kafka = client_package("sink", client.remains)
    settings = {
        "transaction.timeout.ms": _TRANSACTION_MILLISECONDS,
        "compression.type": "lz4",
        **client.producer_settings(),
        **(own or {}),
        "transactional.id": transactional_id,
        "enable.idempotence": True,
    }
    with client.errors("connecting"):
        return kafka.Producer(settings)


def _abort(producer: Any) -> None:
    from confluent_kafka import KafkaException

    if producer is None:
        return
    try:
        producer.abort_transaction(TIMEOUT_SECONDS)
    except KafkaException as error:
        _log.warning("The transaction is aborted by the cluster after its timeout: %s", error)
