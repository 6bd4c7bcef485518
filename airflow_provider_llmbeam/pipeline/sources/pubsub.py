"""Messages of a Pub/Sub subscription: a run writes them to files, and acknowledges them then.

So a kill loses none: what was not acknowledged is delivered again, and recognised by its id.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import apache_beam as beam
from google.api_core.exceptions import DeadlineExceeded, GoogleAPICallError
from requests import ReadTimeout, RequestException

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.bigquery_jobs import before_the_model
from airflow_provider_llmbeam.pipeline.queues.deliveries import first_batches
from airflow_provider_llmbeam.pipeline.queues.deliveries_file import Batches
from airflow_provider_llmbeam.pipeline.sources.messages import complete_uri, encode_message, message_rows
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.source import PubSubSource
from airflow_provider_llmbeam.transport.redirects import RedirectRefusedError, direct

_log = logging.getLogger("llmbeam")

#: Time without a message after which the subscription is empty, in seconds.
_EMPTY_SECONDS = 10.0
_TIMEOUT_SECONDS = 60.0
#: Maximum number of messages of one answer: cloud.google.com/pubsub/docs/reference/rest, `maxMessages`.
_PULLED = 1000


def read(root: beam.Pipeline, spec: JobSpec, source: PubSubSource) -> beam.PCollection:
    """Takes the messages of a run, unless an earlier attempt of it has, and reads them.

    Returns:
        `Row`s, and a `FailedRow` for each message that cannot be parsed.

    Raises:
        JobSpecError: The subscription does not exist, or the account may not read it.
        JobFailedError: Pub/Sub does not answer.
    """
    return message_rows(root, take(spec, source), source.value_format)


def take(spec: JobSpec, source: PubSubSource) -> str:
    """Writes the messages of a run to a file; returns its address."""
    batches = Batches(spec)
    state, files = batches.state(), batches.files()
    batches.delete(set(state.done) & set(files))
    names = state.again(spec.airflow_run.run_id if spec.airflow_run else "", files)
    if names is None:
        pending = {name: list(batches.ids([name])) for name in state.pending(files)}
        names = first_batches({name: len(ids) for name, ids in pending.items()}, source.max_messages)
        if len(names) == len(pending):
            known = {*state.unacknowledged, *chain.from_iterable(pending.values())}
            with _subscriber(source) as subscriber:
                _pull(subscriber, source, batches, known, sum(map(len, pending.values())))
            names = tuple(state.pending(batches.files()))
        batches.begin(names)
    digest = hashlib.sha256("\0".join(names).encode()).hexdigest()[:12]
    uri = f"{spec.paths.export_uri}messages-{digest}.jsonl"
    if storage.exists(complete_uri(uri)):  # an earlier attempt may still read it
        return uri
    with storage.create(uri, is_private=True) as file:
        for name in names:
            file.write(batches.read(name))
    storage.replace(complete_uri(uri), b"")
    return uri


def _pull(subscriber: Any, source: PubSubSource, batches: Batches, known: set[str], count: int) -> None:
    """Writes messages to files until none is left, or the run has enough; `known` gets their ids."""
    begun = count
    while count < source.max_messages:
        asked = min(_PULLED, source.max_messages - count)
        try:
            pulled = subscriber.pull(
                subscription=source.subscription, max_messages=asked, retry=None, timeout=_EMPTY_SECONDS
            )
            received = pulled.received_messages
        except (DeadlineExceeded, ReadTimeout):
            break
        if not received:
            break
        new = {each.message.message_id: each.message for each in received}
        lines = [
            encode_message(columns_of(each, each.publish_time.rfc3339() if each.publish_time else None), each.data)
            for name, each in new.items()
            if name not in known
        ]
        name = batches.write(b"".join(lines)) if lines else None
        known.update(new)
        count += len(lines)
        _acknowledge(subscriber, source, [each.ack_id for each in received])
        if name is not None:
            batches.acknowledged(name)
    _log.info("Messages taken from Pub/Sub: %s", f"{count - begun:,}")
    if count >= source.max_messages:
        _log.info(
            "The run has `source.max_messages`. The next one takes what is left; Pub/Sub does not say how much."
        )


def _acknowledge(subscriber: Any, source: PubSubSource, ack_ids: list[str]) -> None:
    subscriber.acknowledge(subscription=source.subscription, ack_ids=ack_ids, timeout=_TIMEOUT_SECONDS)


def columns_of(message: Any, published_at: str | None) -> dict[str, Any]:
    """Returns what is known of a message besides its data, by column."""
    return {
        "pubsub_message_id": message.message_id,
        "pubsub_publish_time": published_at,
        "pubsub_ordering_key": message.ordering_key or None,
        "pubsub_attributes": dict(message.attributes),
    }


@contextmanager
def _subscriber(source: PubSubSource) -> Iterator[Any]:
    from google.pubsub_v1 import SubscriberClient

    subject = f"`source.subscription` {source.subscription!r}"
    try:
        # REST works through a proxy, and needs no second TLS library in the worker.
        with before_the_model(subject), direct(SubscriberClient(transport="rest")) as subscriber:
            yield subscriber
    except RedirectRefusedError:
        raise
    except (RequestException, GoogleAPICallError) as error:
        raise JobFailedError(f"{subject}: {type(error).__name__}: {error}. {JobSpecError.remains}") from error
