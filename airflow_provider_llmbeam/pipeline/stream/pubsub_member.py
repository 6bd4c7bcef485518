"""A reader of a Pub/Sub subscription, with Google's client: it leases messages, and keeps the order of their keys.

A message is acknowledged when the sinks have its answer. Its functions are called on one thread.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from google.api_core.datetime_helpers import to_rfc3339
from google.api_core.exceptions import GoogleAPICallError
from google.auth.exceptions import GoogleAuthError
from google.cloud.pubsub_v1 import SubscriberClient  # type: ignore[import-untyped]
from google.cloud.pubsub_v1.types import FlowControl  # type: ignore[import-untyped]

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.bigquery_jobs import message_of
from airflow_provider_llmbeam.pipeline.queues.pubsub_publisher import MAX_BYTES, Outgoing, Publisher
from airflow_provider_llmbeam.pipeline.sources.pubsub import columns_of
from airflow_provider_llmbeam.pipeline.stream.flow import room
from airflow_provider_llmbeam.pipeline.stream.journal import PartitionJournal
from airflow_provider_llmbeam.pipeline.stream.member import RestartError
from airflow_provider_llmbeam.pipeline.stream.order import NoOrder
from airflow_provider_llmbeam.pipeline.stream.partition import Commit, Incoming, Partition, Place
from airflow_provider_llmbeam.pipeline.stream.queue import MESSAGE_ID, Queue
from airflow_provider_llmbeam.pipeline.stream.segments import SegmentJournal
from airflow_provider_llmbeam.pipeline.stream.topics import Topics
from airflow_provider_llmbeam.spec.identity import dead_letter_topic, job_identity
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.source import PubSubSource

#: Time without a message after which a subscription is taken for empty, in seconds.
_EMPTY_SECONDS = 10.0
#: Longest time for which the client may take to end, in seconds.
_CLOSE_SECONDS = 30.0
#: HTTP statuses of errors that another try meets, too.
_PERMANENT = frozenset({400, 401, 403, 404})


class PubSubMember:
    """A reader of a subscription.

    Args:
        subscription: The subscription.
        flow: Bounds of the messages that are leased at once.
        publisher: Sends messages to the dead-letter topic.
        journal: What is paid and not acknowledged yet.
        on_assigned: Takes the subscription as one partition.
    """

    def __init__(
        self,
        subscription: str,
        flow: FlowControl,
        publisher: Publisher,
        journal: SegmentJournal,
        on_assigned: Callable[[Sequence[Partition]], None],
    ) -> None:
        self._place = subscription, 0
        self._flow, self._publisher, self._journal = flow, publisher, journal
        self._on_assigned = on_assigned
        self._numbers = itertools.count()
        self._found: SimpleQueue[Any] = SimpleQueue()
        self._leased: dict[int, Any] = {}
        self._is_paused = False
        self._came_at = math.inf
        self._client: SubscriberClient | None = None
        self._pull: Any = None

    def open(self) -> None:
        """Begins to lease messages."""
        try:
            self._client = SubscriberClient()
        except GoogleAuthError as error:
            raise JobSpecError(f"`source.subscription` needs Google credentials: {error}") from None
        self._found, self._came_at, self._is_paused = SimpleQueue(), time.monotonic(), False
        self._pull = self._client.subscribe(
            self._place[0], self._found.put, flow_control=self._flow, await_callbacks_on_shutdown=True
        )
        journal = PartitionJournal(known_until=sys.maxsize)  # each answer ends with its own messages
        self._on_assigned([Partition(self._place, NoOrder(0), journal)])

    def close(self) -> None:
        """Has what is not acknowledged delivered to others at once, and ends."""
        if self._pull is not None:
            for message in [*self._leased.values(), *self._waiting(sys.maxsize)]:
                message.nack()
            self._leased.clear()
            self._pull.cancel()
            with contextlib.suppress(Exception):  # what it ended with is known
                self._pull.result(_CLOSE_SECONDS)
        if self._client is not None:
            self._client.close()
        self._client = self._pull = None

    def poll(self, most: int, seconds: float) -> Iterator[tuple[Place, Incoming | None]]:
        """Yields messages, at most so many; `None` if none has come for some time."""
        if self._pull.done():
            raise self._ended(self._pull.exception())
        if self._is_paused or most == 0:
            time.sleep(seconds)
            return
        with contextlib.suppress(Empty):
            first = self._found.get(timeout=seconds)
            for message in itertools.chain([first], self._waiting(most - 1)):
                self._came_at = time.monotonic()
                number = next(self._numbers)
                self._leased[number] = message
                yield self._place, _incoming(number, message)
        if time.monotonic() - self._came_at >= _EMPTY_SECONDS:
            yield self._place, None

    def pause(self, places: frozenset[Place]) -> None:
        """Takes no messages of the client, which leases no further ones then, or takes them again."""
        self._is_paused = bool(places)

    def lags(self, positions: Sequence[tuple[Place, int]]) -> dict[Place, int]:
        """Returns the number of messages that the client has leased and the worker has not read."""
        return {self._place: self._found.qsize()}

    def machines(self) -> float | None:
        """Returns `None`: who else reads a subscription is not known."""
        return None

    def commit(self, commits: Sequence[Commit], at_ms: int, increment: tuple[bytes, bytes] | None) -> bool:
        """Sends what the dead letter gets, and acknowledges all messages; there is no topic for an increment.

        Raises:
            JobFailedError: Pub/Sub does not take the dead letter.
        """
        results = [result for commit in commits for result in commit.results]
        failed = defaultdict[str, list[Outgoing]](list)
        for result in results:
            if result.topic is not None:
                key = (result.key or b"").decode()
                failed[result.topic].append(Outgoing(result.value, {MESSAGE_ID: result.message.id}, key))
        for topic, messages in failed.items():
            if refused := self._publisher.send(topic, messages):
                raise JobSpecError(f"`stream.dead_letter_topic`: {next(iter(refused.values()))}")
        for result in results:
            self._leased.pop(result.message.offset).ack()
        self._journal.end(paid.offset for commit in commits for paid in commit.ended.values())
        return True

    def _waiting(self, most: int) -> Iterator[Any]:
        with contextlib.suppress(Empty):
            for _ in range(most):
                yield self._found.get_nowait()

    def _ended(self, error: BaseException | None) -> Exception:
        subject = f"`source.subscription` {self._place[0]!r}"
        if isinstance(error, GoogleAPICallError) and error.code in _PERMANENT:
            return JobSpecError(f"{subject}: {message_of(error)}")
        return RestartError(f"{subject}: {type(error).__name__}: {error}")


def open_pubsub(spec: JobSpec, source: PubSubSource, publisher: Publisher) -> Queue:
    """Returns the queue of a job.

    Raises:
        JobSpecError: The dead-letter topic is missing.
        JobFailedError: Pub/Sub does not answer.
    """
    options, dead_letter = spec.stream, dead_letter_topic(spec, source)
    publisher.check(dead_letter, "stream.dead_letter_topic", creates=options.create_topics)
    journal = SegmentJournal(spec.paths.segments_uri, spec.name)
    flow = FlowControl(
        max_messages=room(0, spec.limits.max_in_flight),
        max_bytes=options.max_held_bytes,
        max_lease_duration=math.inf,  # a message may wait for the budget of the next day; the default is an hour
    )

    def open_member(name: str, on_assigned: Any, *_: Any) -> PubSubMember:
        return PubSubMember(source.subscription, flow, publisher, journal, on_assigned)

    topics = Topics(
        source=(source.subscription,),
        answers=None,
        dead_letter=dead_letter,
        journal=spec.paths.segments_uri,
        history=None,
        group=f"llmbeam-{job_identity(spec)}",
    )
    return Queue(topics=topics, max_bytes=MAX_BYTES, journal=journal, open_member=open_member)


def _incoming(number: int, message: Any) -> Incoming:
    columns = columns_of(message, to_rfc3339(message.publish_time))  # type: ignore[no-untyped-call]
    key = message.ordering_key.encode() or None
    return Incoming(number, message.message_id, key, message.publish_time.timestamp(), columns, message.data)
