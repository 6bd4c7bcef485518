"""Topics, subscriptions and messages of the emulated Pub/Sub. No HTTP."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from llmbeam_sandbox.core.clock import Clock
from llmbeam_sandbox.core.rest import RestError

DEFAULT_DEADLINE_SECONDS = 10


@dataclass(slots=True)
class Message:
    """A message of a topic, as it was published."""

    fields: dict[str, Any]
    message_id: str
    published_at: float


@dataclass(slots=True)
class Delivery:
    """A message of a subscription.

    Attributes:
        message: The message.
        ack_id: Id of its last delivery; "" before the first one.
        leased_until: Time from which on it is delivered again.
        attempts: Number of its deliveries.
    """

    message: Message
    ack_id: str = ""
    leased_until: float = 0.0
    attempts: int = 0


@dataclass(slots=True)
class Subscription:
    """A subscription, with the messages that are not acknowledged, the oldest first."""

    path: str
    topic: str
    fields: dict[str, Any]
    deliveries: list[Delivery] = field(default_factory=list)

    @property
    def deadline_seconds(self) -> int:
        """Time after which a message that is not acknowledged is delivered again, in seconds."""
        return int(self.fields.get("ackDeadlineSeconds") or DEFAULT_DEADLINE_SECONDS)

    @property
    def is_ordered(self) -> bool:
        """Whether the messages of an ordering key are delivered one after the other."""
        return bool(self.fields.get("enableMessageOrdering"))


class PubSubState:
    """All topics and subscriptions. Safe to use from any thread.

    Args:
        clock: Returns seconds since the epoch.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._topics: dict[str, list[Message]] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._ids = itertools.count(1)

    def add_topic(self, path: str) -> None:
        """Creates a topic.

        Raises:
            RestError: It exists.
        """
        with self._lock:
            if path in self._topics:
                raise RestError(409, f"Resource already exists in the project (resource={_name(path)}).")
            self._topics[path] = []

    def check_topic(self, path: str) -> None:
        """Checks that a topic exists.

        Raises:
            RestError: It does not.
        """
        with self._lock:
            self._messages(path)

    def messages(self, path: str) -> list[Message]:
        """Returns the messages that were published to a topic."""
        with self._lock:
            return list(self._messages(path))

    def add_subscription(self, path: str, topic: str, fields: dict[str, Any]) -> Subscription:
        """Creates a subscription, which gets the messages that are published from then on.

        Raises:
            RestError: It exists, or its topic does not.
        """
        with self._lock:
            self._messages(topic)
            if path in self._subscriptions:
                raise RestError(409, f"Resource already exists in the project (resource={_name(path)}).")
            self._subscriptions[path] = Subscription(path, topic, fields)
            return self._subscriptions[path]

    def subscription(self, path: str) -> Subscription:
        """Returns a subscription.

        Raises:
            RestError: There is none.
        """
        with self._lock:
            return self._subscription(path)

    def publish(self, topic: str, messages: Sequence[dict[str, Any]]) -> list[str]:
        """Publishes messages, and returns their ids."""
        with self._lock:
            found = [Message(fields, str(next(self._ids)), self._clock()) for fields in messages]
            self._messages(topic).extend(found)
            for each in self._subscriptions.values():
                if each.topic == topic:
                    each.deliveries += map(Delivery, found)
            return [message.message_id for message in found]

    def pull(self, path: str, count: int, deadline_seconds: int | None = None) -> list[Delivery]:
        """Delivers messages that nobody holds; of an ordering key only those after which none is held.

        Args:
            path: The subscription.
            count: Maximum number of messages.
            deadline_seconds: Time after which they are delivered again, in seconds. `None`: the subscription's.
        """
        with self._lock:
            subscription, now = self._subscription(path), self._clock()
            found, held = list[Delivery](), set[str]()
            for each in subscription.deliveries:
                key = each.message.fields.get("orderingKey", "") if subscription.is_ordered else ""
                if each.leased_until > now:
                    held.add(key or f"message {each.message.message_id}")
                elif (not key or key not in held) and len(found) < count:
                    each.attempts += 1
                    each.ack_id = f"{each.message.message_id}:{each.attempts}"
                    each.leased_until = now + (deadline_seconds or subscription.deadline_seconds)
                    found.append(each)
            return found

    def leased(self, path: str, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Returns those of some deliveries that are neither acknowledged nor due again."""
        with self._lock:
            left, now = {*map(id, self._subscription(path).deliveries)}, self._clock()
            return [each for each in deliveries if id(each) in left and each.leased_until > now]

    def acknowledge(self, path: str, ack_ids: Sequence[str]) -> None:
        """Ends the deliveries with these ids; others are passed over, as by Pub/Sub."""
        with self._lock:
            subscription, ended = self._subscription(path), set(ack_ids)
            subscription.deliveries = [each for each in subscription.deliveries if each.ack_id not in ended]

    def extend(self, path: str, ack_ids: Sequence[str], seconds: int) -> None:
        """Changes the time after which messages are delivered again; 0 does so at once."""
        with self._lock:
            for each in self._subscription(path).deliveries:
                if each.ack_id in ack_ids:
                    each.leased_until = self._clock() + seconds

    def clear(self) -> None:
        """Removes all topics and subscriptions."""
        with self._lock:
            self._topics.clear()
            self._subscriptions.clear()

    def _messages(self, path: str) -> list[Message]:
        if path not in self._topics:
            raise RestError(404, f"Resource not found (resource={_name(path)}).")
        return self._topics[path]

    def _subscription(self, path: str) -> Subscription:
        if path not in self._subscriptions:
            raise RestError(404, f"Resource not found (resource={_name(path)}).")
        return self._subscriptions[path]


def _name(path: str) -> str:
    return path.rpartition("/")[2]
