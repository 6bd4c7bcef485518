"""The Pub/Sub sink: sends the answers as messages."""

from __future__ import annotations

import hashlib
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from google.api_core.exceptions import BadRequest, GoogleAPIError
from google.api_core.retry import Retry
from requests import RequestException

from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.pipeline.bigquery_jobs import before_the_model, message_of
from airflow_provider_llmbeam.pipeline.elements import Row
from airflow_provider_llmbeam.pipeline.records import encode_key, encode_record, read_records
from airflow_provider_llmbeam.pipeline.sinks.refused import Refuse, store_each
from airflow_provider_llmbeam.pipeline.sinks.sent import Unsent, digest_of, find_unsent, remember
from airflow_provider_llmbeam.spec.sink import PubSubSink
from airflow_provider_llmbeam.transport.redirects import direct

_log = logging.getLogger("llmbeam")

#: Limits of one request: 1,000 messages and 10 MB, of which base64 takes a third more than the data.
#: Source: cloud.google.com/pubsub/quotas, "Resource limits".
_MESSAGES, _BYTES = 1000, 5_000_000
_ATTRIBUTE_BYTES = 1024
_TIMEOUT_SECONDS = 60.0
#: Time for all tries of a request, in seconds.
_RETRY_SECONDS = 300.0
_KEPT = "The answers are in the journal: a retry sends nothing to the model, and all messages again."

#: The position of an answer in the staged file, and its message.
_Message = tuple[int, dict[str, Any]]


def check(sink: PubSubSink) -> None:
    """Checks that the topic exists.

    Raises:
        JobSpecError: It does not, or the account may not see it.
        JobFailedError: Pub/Sub does not answer.
    """
    with before_the_model(f"`sink.topic` {sink.topic!r}"), _publisher() as publisher:
        publisher.get_topic(topic=sink.topic, timeout=_TIMEOUT_SECONDS)


def publish(
    sink: PubSubSink, key: tuple[str, ...], staged: Mapping[int, str], sent_uri: str, refuse: Refuse
) -> list[str]:
    """Sends the staged answers, unless the run has sent them.

    Args:
        sink: The sink.
        key: Key columns.
        staged: Address of each file of answer records, as JSON lines.
        sent_uri: File that names what was sent.
        refuse: Takes each answer that Pub/Sub refuses.

    Returns:
        The address of the topic.

    Raises:
        JobFailedError: Pub/Sub rejected messages, or does not answer; some may have been sent.
    """
    address = f"pubsub://{sink.topic}"
    digest = digest_of(address, read_records(staged))
    count = 0
    refused = set[int]()

    def take(number: int, reason: str) -> None:
        refused.add(number)
        refuse(number, reason)

    try:
        with _publisher() as publisher:
            for answers in _requests(sink, key, find_unsent(sent_uri, digest, staged)):
                count += _send(publisher, sink.topic, answers, take)
    except GoogleAPIError as error:
        raise JobFailedError(f"`sink.topic` {sink.topic!r}: {message_of(error)} {_KEPT}") from error
    except RequestException as error:
        raise JobFailedError(f"`sink.topic` {sink.topic!r}: {type(error).__name__}: {error} {_KEPT}") from error
    if count or refused:
        remember(sent_uri, digest, staged, refused)
        _log.info("Messages sent to %s: %s", address, f"{count:,}")
    else:
        _log.info("The answers were sent to %s by an earlier attempt.", address)
    return [address]


def _send(publisher: Any, topic: str, answers: list[_Message], refuse: Refuse) -> int:
    """Sends the messages of a request but those that Pub/Sub refuses; returns their number."""
    count = 0

    def send(first: int, end: int) -> str | None:
        nonlocal count
        messages = [message for _, message in answers[first:end]]
        try:
            sent = publisher.publish(
                topic=topic, messages=messages, retry=Retry(timeout=_RETRY_SECONDS), timeout=_TIMEOUT_SECONDS
            )
        except (
            BadRequest
        ) as error:  # too large, or not of the schema of the topic: a request is refused as a whole
            return f"`sink.topic` {topic!r}: {message_of(error)}"
        count += len(sent.message_ids)
        return None

    store_each(0, len(answers), send, lambda position, reason: refuse(answers[position][0], reason))
    return count


def message_of_answer(sink: PubSubSink, key: tuple[str, ...], record: Row) -> dict[str, Any]:
    """Returns the message of an answer: data, attributes and ordering key, if it has one."""
    data, name = encode_record(record).rstrip(b"\n"), _name(encode_key(record, key).rstrip(b"\n"))
    message: dict[str, Any] = {"data": data, "attributes": {"llmbeam_key": name}}
    if sink.ordering_key is not None and record[sink.ordering_key] is not None:
        message["ordering_key"] = str(record[sink.ordering_key])
    return message


def _requests(sink: PubSubSink, key: tuple[str, ...], answers: Iterable[Unsent]) -> Iterator[list[_Message]]:
    """Yields the messages of each request, of one ordering key and in the order of the answers."""
    open_requests, count, size = defaultdict[str | None, list[_Message]](list), 0, 0
    for number, record in answers:
        message = message_of_answer(sink, key, record)
        length = len(message["data"]) + len(message["attributes"]["llmbeam_key"])
        if count and (count == _MESSAGES or size + length > _BYTES):
            yield from open_requests.values()
            open_requests.clear()
            count = size = 0
        open_requests[message.get("ordering_key")].append((number, message))
        count, size = count + 1, size + length
    yield from open_requests.values()


def _name(key: bytes) -> str:
    return key.decode() if len(key) <= _ATTRIBUTE_BYTES else hashlib.sha256(key).hexdigest()


@contextmanager
def _publisher() -> Iterator[Any]:
    from google.pubsub_v1 import PublisherClient

    with direct(PublisherClient(transport="rest")) as publisher:
        yield publisher
