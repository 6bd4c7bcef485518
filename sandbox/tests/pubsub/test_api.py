"""Pub/Sub, called with Google's client over REST."""

from __future__ import annotations

import pytest
from google.api_core.exceptions import AlreadyExists, BadRequest, Conflict, InvalidArgument, NotFound
from google.pubsub_v1 import PublisherClient, SubscriberClient
from llmbeam_sandbox import Fault

TOPIC = "projects/llmbeam-sandbox/topics/tickets"
SUBSCRIPTION = "projects/llmbeam-sandbox/subscriptions/labels"


@pytest.fixture
def publisher(google):
    with PublisherClient(transport="rest") as opened:
        opened.create_topic(name=TOPIC)
        yield opened


@pytest.fixture
def subscriber(publisher):
    with SubscriberClient(transport="rest") as opened:
        opened.create_subscription(name=SUBSCRIPTION, topic=TOPIC, ack_deadline_seconds=600)
        yield opened


def pull(client, count=10):
    return list(client.pull(subscription=SUBSCRIPTION, max_messages=count, retry=None).received_messages)


def test_a_message_is_delivered_until_it_is_acknowledged(publisher, subscriber):
    sent = {"data": b"\x00hello", "attributes": {"lang": "en"}}
    (message_id,) = publisher.publish(topic=TOPIC, messages=[sent]).message_ids
    (first,) = pull(subscriber)
    assert (first.message.message_id, first.message.data) == (message_id, b"\x00hello")
    assert dict(first.message.attributes) == {"lang": "en"}
    assert pull(subscriber) == [], "it is held until the deadline"
    subscriber.modify_ack_deadline(subscription=SUBSCRIPTION, ack_ids=[first.ack_id], ack_deadline_seconds=0)
    (again,) = pull(subscriber)
    assert again.message.message_id == message_id
    subscriber.acknowledge(subscription=SUBSCRIPTION, ack_ids=[first.ack_id, again.ack_id])
    subscriber.modify_ack_deadline(subscription=SUBSCRIPTION, ack_ids=[again.ack_id], ack_deadline_seconds=0)
    assert pull(subscriber) == []


def test_messages_of_an_ordering_key_are_delivered_in_their_order(publisher):
    with SubscriberClient(transport="rest") as subscriber:
        request = {"name": SUBSCRIPTION, "topic": TOPIC, "enable_message_ordering": True}
        subscriber.create_subscription(request=request)
        messages = [{"data": bytes([number]), "ordering_key": "k"} for number in range(3)]
        publisher.publish(topic=TOPIC, messages=messages)
        publisher.publish(topic=TOPIC, messages=[{"data": b"other"}])
        assert [each.message.data for each in pull(subscriber, 1)] == [b"\x00"]
        assert [each.message.data for each in pull(subscriber)] == [b"other"]


def test_what_does_not_exist_or_exists_already_is_an_error(publisher, subscriber):
    with pytest.raises((AlreadyExists, Conflict)):
        publisher.create_topic(name=TOPIC)
    with pytest.raises((AlreadyExists, Conflict)):
        subscriber.create_subscription(name=SUBSCRIPTION, topic=TOPIC)
    with pytest.raises(NotFound, match=r"Resource not found \(resource=none\)"):
        publisher.get_topic(topic=f"{TOPIC[:-7]}none")
    with pytest.raises(NotFound):
        subscriber.get_subscription(subscription=f"{SUBSCRIPTION[:-6]}none")
    assert publisher.get_topic(topic=TOPIC).name == TOPIC
    assert subscriber.get_subscription(subscription=SUBSCRIPTION).topic == TOPIC


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{}],
        [{"data": b"x"}] * 1001,
        [{"data": b"x", "ordering_key": "k" * 1025}],
        [{"data": b"x", "ordering_key": key} for key in "ab"],
        [{"data": b"x" * 10**7}],
    ],
)
def test_a_request_beyond_the_limits_is_refused(publisher, messages):
    with pytest.raises((BadRequest, InvalidArgument)):
        publisher.publish(topic=TOPIC, messages=messages)


def test_a_pull_can_fail_and_a_reset_removes_everything(sandbox, subscriber):
    sandbox.faults.queue("pubsub.subscriptions.pull", Fault(kind="error", http_status=403))
    with pytest.raises(Exception, match="not authorized"):
        pull(subscriber)
    with pytest.raises((BadRequest, InvalidArgument)):
        pull(subscriber, 0)
    sandbox.reset()
    with pytest.raises(NotFound):
        pull(subscriber)
