"""Pub/Sub's REST API, as google-cloud-pubsub calls it with `transport="rest"`."""

from __future__ import annotations

import re
from collections.abc import Callable

from aiohttp import web

from llmbeam_sandbox.core.backend import Backend
from llmbeam_sandbox.core.methods import Method, Methods
from llmbeam_sandbox.core.responses import Reply, json_reply
from llmbeam_sandbox.core.rest import RestCall, RestError, Route, Service
from llmbeam_sandbox.pubsub.checks import check_messages
from llmbeam_sandbox.pubsub.responses import WORDING, received_message, subscription_resource
from llmbeam_sandbox.pubsub.state import PubSubState

METHODS = Methods(
    names=(
        "pubsub.subscriptions.acknowledge",
        "pubsub.subscriptions.create",
        "pubsub.subscriptions.get",
        "pubsub.subscriptions.modifyAckDeadline",
        "pubsub.subscriptions.pull",
        "pubsub.topics.create",
        "pubsub.topics.get",
        "pubsub.topics.publish",
    )
)
_TOPIC = r"/v1/(?P<topic>projects/[^/]+/topics/[^/:]+)"
_SUBSCRIPTION = r"/v1/(?P<subscription>projects/[^/]+/subscriptions/[^/:]+)"


class PubSub:
    """The methods of Pub/Sub.

    Args:
        state: The topics and subscriptions.
    """

    def __init__(self, state: PubSubState) -> None:
        self._state = state

    def routes(self) -> list[Route]:
        """Returns the methods and their paths."""
        ack = rf"{_SUBSCRIPTION}:acknowledge"
        return [
            _route("PUT", _TOPIC, "pubsub.topics.create", self._create_topic),
            _route("GET", _TOPIC, "pubsub.topics.get", self._get_topic),
            _route("POST", rf"{_TOPIC}:publish", "pubsub.topics.publish", self._publish),
            _route("PUT", _SUBSCRIPTION, "pubsub.subscriptions.create", self._create_subscription),
            _route("GET", _SUBSCRIPTION, "pubsub.subscriptions.get", self._get_subscription),
            _route("POST", rf"{_SUBSCRIPTION}:pull", "pubsub.subscriptions.pull", self._pull),
            _route("POST", ack, "pubsub.subscriptions.acknowledge", self._acknowledge),
            _route(
                "POST",
                rf"{_SUBSCRIPTION}:modifyAckDeadline",
                "pubsub.subscriptions.modifyAckDeadline",
                self._modify,
            ),
        ]

    def _create_topic(self, call: RestCall) -> Reply:
        self._state.add_topic(call.names["topic"])
        return json_reply({"name": call.names["topic"]})

    def _get_topic(self, call: RestCall) -> Reply:
        self._state.check_topic(call.names["topic"])
        return json_reply({"name": call.names["topic"], "state": "ACTIVE"})

    def _publish(self, call: RestCall) -> Reply:
        messages = list(call.fields().get("messages") or [])
        self._state.check_topic(call.names["topic"])
        check_messages(messages, len(call.body))
        return json_reply({"messageIds": self._state.publish(call.names["topic"], messages)})

    def _create_subscription(self, call: RestCall) -> Reply:
        fields = call.fields()
        topic = str(fields.pop("topic", ""))
        found = self._state.add_subscription(call.names["subscription"], topic, fields)
        return json_reply(subscription_resource(found))

    def _get_subscription(self, call: RestCall) -> Reply:
        return json_reply(subscription_resource(self._state.subscription(call.names["subscription"])))

    def _pull(self, call: RestCall) -> Reply:
        count = int(call.fields().get("maxMessages") or 0)
        if count < 1:
            raise RestError(400, "The value for max_messages is too small. You passed 0 in the request.")
        found = self._state.pull(call.names["subscription"], count)
        return json_reply({"receivedMessages": [received_message(each) for each in found]} if found else {})

    def _acknowledge(self, call: RestCall) -> Reply:
        self._state.acknowledge(call.names["subscription"], list(call.fields().get("ackIds") or []))
        return json_reply({})

    def _modify(self, call: RestCall) -> Reply:
        fields = call.fields()
        ack_ids, seconds = list(fields.get("ackIds") or []), int(fields.get("ackDeadlineSeconds") or 0)
        self._state.extend(call.names["subscription"], ack_ids, seconds)
        return json_reply({})


def make_service(backend: Backend, state: PubSubState) -> Service:
    """Returns the methods of Pub/Sub."""
    return Service(backend, WORDING, PubSub(state).routes(), is_slow=False)


def routes(service: Service) -> list[web.RouteDef]:
    """Returns the routes of Pub/Sub."""
    return [
        web.route("*", f"/v1/projects/{{project}}/{kind}{{tail:.*}}", service.serve)
        for kind in ("topics", "subscriptions")
    ]


def _route(verb: str, path: str, method: Method, work: Callable[[RestCall], Reply]) -> Route:
    return Route(verb=verb, pattern=re.compile(path), method=method, work=work)
