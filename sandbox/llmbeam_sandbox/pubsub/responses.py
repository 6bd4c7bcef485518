"""Topics, subscriptions, messages and errors in the format of Pub/Sub."""

from __future__ import annotations

from typing import Any

from llmbeam_sandbox.core.clock import timestamp
from llmbeam_sandbox.core.rest import STATUSES, RestError, StatusWording
from llmbeam_sandbox.pubsub.state import Delivery, Subscription

WORDING = StatusWording(
    reasons=STATUSES,
    messages={
        403: "User not authorized to perform this action.",
        500: "A service error has occurred. Please retry your request.",
        503: "The service was unable to fulfill your request. Please try again.",
    },
    rate_limit=RestError(429, "Quota exceeded for quota metric 'Regional subscriber throughput, kB'."),
)


def subscription_resource(subscription: Subscription) -> dict[str, Any]:
    """Returns a subscription as the API returns it."""
    return {
        **subscription.fields,
        "name": subscription.path,
        "topic": subscription.topic,
        "ackDeadlineSeconds": subscription.deadline_seconds,
        "state": "ACTIVE",
    }


def received_message(delivery: Delivery) -> dict[str, Any]:
    """Returns a delivery as the API returns it."""
    message = delivery.message
    sent = {**message.fields, "messageId": message.message_id, "publishTime": timestamp(message.published_at)}
    return {"ackId": delivery.ack_id, "message": sent}
