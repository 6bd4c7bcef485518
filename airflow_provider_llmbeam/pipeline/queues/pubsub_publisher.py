"""A publisher of Pub/Sub for messages that cannot wait: Google's client sends several batches at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from google.api_core.exceptions import AlreadyExists, BadRequest, GoogleAPIError, NotFound
from google.api_core.retry import Retry
from google.cloud.pubsub_v1 import PublisherClient, SubscriberClient  # type: ignore[import-untyped]
from google.cloud.pubsub_v1.types import PublisherOptions  # type: ignore[import-untyped]

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError
from airflow_provider_llmbeam.pipeline.bigquery_jobs import before_the_model, message_of

#: Size of the largest message, in bytes, with room for its attributes. Source: cloud.google.com/pubsub/quotas.
MAX_BYTES = 9_500_000
#: Time for all tries of a request, and for one, in seconds.
_RETRY_SECONDS, _TIMEOUT_SECONDS = 120.0, 60.0


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message that is sent.

    Attributes:
        data: Its data.
        attributes: Its attributes.
        ordering_key: Its ordering key; "" for none.
    """

    data: bytes
    attributes: Mapping[str, str] = field(default_factory=dict)
    ordering_key: str = ""


class Publisher:
    """Sends messages in the order of their ordering keys."""

    def __init__(self) -> None:
        with before_the_model("Pub/Sub"):
            options = PublisherOptions(
                enable_message_ordering=True, retry=Retry(timeout=_RETRY_SECONDS), timeout=_TIMEOUT_SECONDS
            )
            self._client = PublisherClient(publisher_options=options)

    def check(self, topic: str, field_name: str, *, creates: bool) -> None:
        """Checks that a topic exists; creates it with a subscription of its name if it may.

        Raises:
            JobSpecError: It does not, or the account may not see it.
            JobFailedError: Pub/Sub does not answer.
        """
        with before_the_model(f"`{field_name}` {topic!r}"):
            try:
                self._client.get_topic(topic=topic, timeout=_TIMEOUT_SECONDS)
            except NotFound:
                if not creates:
                    raise JobSpecError(
                        f"`{field_name}`: there is no topic {topic!r}. Create it with a subscription, as Pub/Sub "
                        "keeps no message without one; or set `stream.create_topics`."
                    ) from None
                self._create(topic)

    def send(self, topic: str, messages: Sequence[Outgoing]) -> dict[int, str]:
        """Sends messages, and returns once they are stored.

        Returns:
            Positions of the messages that Pub/Sub refuses, and why.

        Raises:
            JobFailedError: Pub/Sub does not answer; some may have been sent.
        """
        refused: dict[int, str] = {}
        with _errors(topic):
            sent = [self._begin(topic, each) for each in messages]
            # A request is refused as a whole, and ends what follows with its ordering key.
            for number in [number for number, each in enumerate(sent) if _is_refused(each)]:
                self._resume(topic, messages[number])
                if _is_refused(again := self._begin(topic, messages[number])):
                    refused[number] = f"{topic!r}: {again.exception()}"
                    self._resume(topic, messages[number])
        return refused

    def close(self) -> None:
        """Sends what is left."""
        self._client.stop()

    def _begin(self, topic: str, message: Outgoing) -> Future[str]:
        sent: Future[str] = self._client.publish(
            topic, message.data, ordering_key=message.ordering_key, **message.attributes
        )
        return sent

    def _resume(self, topic: str, message: Outgoing) -> None:
        if message.ordering_key:
            self._client.resume_publish(topic, message.ordering_key)

    def _create(self, topic: str) -> None:
        subscription = topic.replace("/topics/", "/subscriptions/")
        with SubscriberClient() as subscriber:
            with suppress(AlreadyExists):  # another worker was faster
                self._client.create_topic(name=topic, timeout=_TIMEOUT_SECONDS)
            with suppress(AlreadyExists):
                subscriber.create_subscription(name=subscription, topic=topic, timeout=_TIMEOUT_SECONDS)


def _is_refused(sent: Future[str]) -> bool:
    """Returns whether Pub/Sub refuses a message, or the client after an earlier one of its ordering key."""
    error = sent.exception()
    if isinstance(error, GoogleAPIError) and not isinstance(error, BadRequest):
        raise error
    return error is not None


@contextmanager
def _errors(topic: str) -> Iterator[None]:
    try:
        yield
    except GoogleAPIError as error:
        raise JobFailedError(
            f"Topic {topic!r}: {message_of(error)} The answers are in the journal, and their messages are "
            "delivered again: a worker that is started again sends nothing to the model for them."
        ) from error
