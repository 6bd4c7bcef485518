"""The Kafka sink: sends the answers in one transaction."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from airflow_provider_llmbeam.exceptions import JobSpecError, refusal
from airflow_provider_llmbeam.pipeline.elements import Row
from airflow_provider_llmbeam.pipeline.queues.kafka_client import (
    CONSUMER_SETTINGS,
    NOTHING_SENT,
    TIMEOUT_SECONDS,
    Client,
    client_package,
)
from airflow_provider_llmbeam.pipeline.records import encode_key, encode_record, read_records
from airflow_provider_llmbeam.pipeline.sinks.sent import digest_of, remember, were_sent
from airflow_provider_llmbeam.spec.sink import KafkaSink

_log = logging.getLogger("llmbeam")

#: Timeout of the transaction in the cluster: the largest one that brokers accept by default
#: (`transaction.max.timeout.ms`). One that was killed is aborted then, or when its run is repeated.
_TRANSACTION_MILLISECONDS = 900_000
#: Time to commit or to abort, in seconds; the commit sends all messages that are still in the client.
_COMMIT_SECONDS = 600.0
#: Maximum length of a key in an error.
_SHOWN = 200
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
    client = Client(sink, "sink", NOTHING_SENT)
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
    sink: KafkaSink, key: tuple[str, ...], job: str, staged: Mapping[int, str], sent_uri: str
) -> list[str]:
    """Sends the staged answers, unless the run has sent them.

    Args:
        sink: The sink.
        key: Key columns.
        job: Identity of the job.
        staged: Address of each file of answer records, as JSON lines.
        sent_uri: File that names what was sent.

    Returns:
        The address of the topic.

    Raises:
        JobFailedError: The cluster rejected the messages; the transaction is aborted.
    """
    client = Client(sink, "sink", _KEPT)
    address = f"kafka://{client.settings()['bootstrap.servers']}/{sink.topic}"
    digest = digest_of(address, read_records(staged))
    if were_sent(sent_uri, digest):
        _log.info("The answers were sent to %s by an earlier attempt.", address)
        return [address]
    producer = _producer(client, f"llmbeam-{job}")
    count = 0
    with client.errors("sending the answers"):
        producer.init_transactions(TIMEOUT_SECONDS)
        producer.begin_transaction()
        try:
            for record in read_records(staged):
                _send(producer, client, sink.topic, key, record)
                count += 1
            # It sends what is left, and fails if a message was not delivered to all replicas in sync.
            producer.commit_transaction(_COMMIT_SECONDS)
        except BaseException:
            _abort(producer)
            raise
    remember(sent_uri, digest)
    _log.info("Messages sent to %s: %s", address, f"{count:,}")
    return [address]


def _producer(client: Client, transactional_id: str) -> Any:
    kafka = client_package("sink", client.remains)
    given = {name: value for name, value in client.settings().items() if name not in CONSUMER_SETTINGS}
    settings = {
        "transaction.timeout.ms": _TRANSACTION_MILLISECONDS,
        "compression.type": "lz4",
        **given,
        "transactional.id": transactional_id,
        "enable.idempotence": True,
    }
    with client.errors("connecting"):
        return kafka.Producer(settings)


def _send(producer: Any, client: Client, topic: str, key: tuple[str, ...], record: Row) -> None:
    kafka = client_package("sink", client.remains)
    value, name = encode_record(record).rstrip(b"\n"), encode_key(record, key).rstrip(b"\n")
    while True:
        try:
            producer.produce(topic, value, name)
        except BufferError:  # the queue of the client is full
            producer.poll(1.0)
        except kafka.KafkaException as raised:
            if raised.args[0].name() != "MSG_SIZE_TOO_LARGE":
                raise
            raise refusal(
                f"`sink.topic` {topic!r}: the answer with the key {name.decode()[:_SHOWN]} is a message of "
                f"{len(value):,} bytes, more than the client sends; the transaction was aborted. Set "
                "`message.max.bytes` in the settings of the connection, and `max.message.bytes` of the topic, to "
                f"more, or leave columns out of `sink.passthrough`.",
                client.remains,
            ) from None
        else:
            return


def _abort(producer: Any) -> None:
    from confluent_kafka import KafkaException

    try:
        producer.abort_transaction(TIMEOUT_SECONDS)
    except KafkaException as error:
        _log.warning("The transaction is aborted by the cluster after its timeout: %s", error)
