"""Pub/Sub over gRPC, called with the client that leases messages."""

from __future__ import annotations

import queue
import time

import grpc
import pytest
from google.api_core.exceptions import NotFound
from google.cloud.pubsub_v1 import PublisherClient, SubscriberClient
from google.cloud.pubsub_v1.types import FlowControl, PublisherOptions

TOPIC = "projects/llmbeam-sandbox/topics/tickets"
SUBSCRIPTION = "projects/llmbeam-sandbox/subscriptions/labels"


class Token(grpc.UnaryUnaryClientInterceptor, grpc.StreamStreamClientInterceptor):
    """Adds the token of a sandbox to each call."""

    def __init__(self, token):
        self._metadata = ("authorization", f"Bearer {token}")

    def intercept_unary_unary(self, call, details, request):
        return call(details._replace(metadata=[*(details.metadata or ()), self._metadata]), request)

    intercept_stream_stream = intercept_unary_unary


@pytest.fixture
def opened(sandbox):
    """Returns a function that opens a client. Through the proxy, gRPC would trust the first one of the process."""
    channel = grpc.insecure_channel(f"127.0.0.1:{sandbox.start_grpc()}")
    authorized = grpc.intercept_channel(channel, Token(sandbox.token))
    yield lambda kind, **given: kind(transport=kind.get_transport_class("grpc")(channel=authorized), **given)
    channel.close()


@pytest.fixture
def publish(opened):
    """Returns a function that publishes texts with an ordering key to a subscription with message ordering."""
    publisher = opened(PublisherClient, publisher_options=PublisherOptions(enable_message_ordering=True))
    publisher.create_topic(name=TOPIC)
    request = {"name": SUBSCRIPTION, "topic": TOPIC, "enable_message_ordering": True}
    opened(SubscriberClient).create_subscription(request=request)

    def published(key, *texts):
        for sent in [publisher.publish(TOPIC, text.encode(), ordering_key=key) for text in texts]:
            sent.result(10)

    yield published
    publisher.stop()


@pytest.fixture
def pull(publish, opened):
    """Returns a function that begins to pull, and returns where messages come."""
    subscriber = opened(SubscriberClient)
    pulls = []

    def begin(**given):
        found = queue.Queue()
        pulls.append(subscriber.subscribe(SUBSCRIPTION, found.put, flow_control=FlowControl(**given)))
        return found

    yield begin
    for each in pulls:
        each.cancel()
        each.result(10)


def test_messages_come_in_the_order_of_their_key_until_they_are_acknowledged(publish, pull, sandbox):
    publish("a", "1", "2")
    publish("b", "3")
    found, texts = pull(), []
    for _ in range(3):
        message = found.get(timeout=10)
        texts.append(message.data.decode())
        message.ack()
    assert texts.index("1") < texts.index("2")
    deadline = time.monotonic() + 10
    while sandbox.pubsub.subscription(SUBSCRIPTION).deliveries:
        assert time.monotonic() < deadline


def test_no_more_messages_come_than_the_client_asks_for_until_one_is_acknowledged(publish, pull, sandbox):
    for key in "abcd":
        publish(key, "text")
    found = pull(max_messages=2)
    first, _ = found.get(timeout=10), found.get(timeout=10)
    with pytest.raises(queue.Empty):
        found.get(timeout=0.5)
    assert sum(each.attempts for each in sandbox.pubsub.subscription(SUBSCRIPTION).deliveries) == 2
    first.ack()
    found.get(timeout=10)


def test_a_message_that_is_refused_comes_again(publish, pull):
    publish("a", "1")
    found = pull()
    found.get(timeout=10).nack()
    assert found.get(timeout=10).data == b"1"


def test_a_subscription_that_does_not_exist_is_an_error(opened):
    with pytest.raises(NotFound):
        opened(SubscriberClient).subscribe(SUBSCRIPTION, print).result(10)
