"""Pub/Sub over gRPC, with streaming pull, as google-cloud-pubsub's own clients call it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from llmbeam_sandbox.core.grpc import GrpcApi, Rpc
from llmbeam_sandbox.core.rest import Service
from llmbeam_sandbox.pubsub.responses import received_message
from llmbeam_sandbox.pubsub.state import Delivery, PubSubState

#: Interval between two looks for messages, in seconds.
_POLL_SECONDS = 0.01
#: Maximum number of messages of an answer.
_MESSAGES = 1000


def grpc_api(methods: Service, state: PubSubState) -> GrpcApi:
    """Returns the methods of Pub/Sub over gRPC.

    Args:
        methods: The methods over REST.
        state: The topics and subscriptions.
    """

    def pull(requests: Iterator[Any], is_active: Callable[[], bool]) -> Iterator[Any]:
        return _pull(state, requests, is_active)

    stream = ("StreamingPullRequest", "StreamingPullResponse", pull)
    return GrpcApi(
        package="google.pubsub.v1",
        types="google.pubsub_v1",
        methods=methods,
        rpcs=_RPCS,
        streams={("Subscriber", "StreamingPull"): stream},
    )


def _pull(state: PubSubState, requests: Iterator[Any], is_active: Callable[[], bool]) -> Iterator[Any]:
    """Delivers messages as they come, at most as many at once as the client has no acknowledgements sent for."""
    from google.protobuf import json_format
    from google.pubsub_v1 import StreamingPullResponse

    begin = next(requests, None)
    if begin is None:
        return
    path, most = begin.subscription, begin.max_outstanding_messages or _MESSAGES
    state.subscription(path)
    thread = threading.Thread(target=_take_requests, args=(state, path, requests), daemon=True)
    thread.start()
    delivered: list[Delivery] = []
    while is_active():
        delivered = state.leased(path, delivered)
        found = state.pull(path, min(_MESSAGES, most - len(delivered)), begin.stream_ack_deadline_seconds)
        if not found:
            time.sleep(_POLL_SECONDS)
            continue
        delivered += found
        answer = {"receivedMessages": [received_message(each) for each in found]}
        yield json_format.ParseDict(answer, StreamingPullResponse()._pb)


def _take_requests(state: PubSubState, path: str, requests: Iterator[Any]) -> None:
    """Takes what a client sends on an open stream."""
    try:
        for request in requests:
            state.acknowledge(path, list(request.ack_ids))
            changes = zip(request.modify_deadline_ack_ids, request.modify_deadline_seconds, strict=False)
            for ack_id, seconds in changes:
                state.extend(path, [ack_id], seconds)
    except Exception:  # noqa: BLE001 - the stream is over
        return


def _topic(request: Any) -> str:
    return f"/v1/{request.topic}"


def _name(request: Any) -> str:
    return f"/v1/{request.name}"


def _subscription(request: Any) -> str:
    return f"/v1/{request.subscription}"


def _rpc(
    service: str, name: str, request: str, answer: str, verb: str, path: Callable[[Any], str], in_path: str
) -> Rpc:
    return Rpc(
        service=service,
        name=name,
        request=request,
        answer=answer,
        verb=verb,
        path=path,
        body="" if verb == "GET" else "*",
        in_path=frozenset({in_path}),
    )


def _publish(request: Any) -> str:
    return f"{_topic(request)}:publish"


def _acknowledge(request: Any) -> str:
    return f"{_subscription(request)}:acknowledge"


def _modify(request: Any) -> str:
    return f"{_subscription(request)}:modifyAckDeadline"


_PUBLISHER, _SUBSCRIBER, _ACK = "Publisher", "Subscriber", "ModifyAckDeadline"
_RPCS = (
    _rpc(_PUBLISHER, "CreateTopic", "Topic", "Topic", "PUT", _name, "name"),
    _rpc(_PUBLISHER, "GetTopic", "GetTopicRequest", "Topic", "GET", _topic, "topic"),
    _rpc(_PUBLISHER, "Publish", "PublishRequest", "PublishResponse", "POST", _publish, "topic"),
    _rpc(_SUBSCRIBER, "CreateSubscription", "Subscription", "Subscription", "PUT", _name, "name"),
    _rpc(_SUBSCRIBER, "Acknowledge", "AcknowledgeRequest", "", "POST", _acknowledge, "subscription"),
    _rpc(_SUBSCRIBER, _ACK, f"{_ACK}Request", "", "POST", _modify, "subscription"),
)
