"""The reader of a Pub/Sub subscription, with a client that the test holds."""

from __future__ import annotations

import time
from typing import Any

from google.cloud.pubsub_v1.subscriber._protocol.leaser import Leaser
from google.cloud.pubsub_v1.subscriber._protocol.requests import LeaseRequest

from airflow_provider_llmbeam.pipeline.stream import pubsub_member
from airflow_provider_llmbeam.spec import JobSpec


class Publisher:
    def check(self, topic: str, field_name: str, *, creates: bool) -> None:
        pass


class Client:
    """Google's client, of which the test takes the bounds of leased messages."""

    flow: Any = None

    def subscribe(self, subscription: str, callback: Any, *, flow_control: Any, **options: Any) -> None:
        Client.flow = flow_control


class Manager:
    """What maintains leases in Google's client: notes what is dropped, and ends after one round."""

    def __init__(self, flow: Any) -> None:
        self.flow_control, self.dispatcher, self.dropped = flow, self, list[Any]()
        self.leaser: Any = None

    def _obtain_ack_deadline(self, **options: Any) -> int:
        self.leaser._stop_event.set()
        return 10

    def _send_lease_modacks(self, ids: Any, deadline: int, data: Any) -> set[str]:
        return set()

    def _exactly_once_delivery_enabled(self) -> bool:
        return False

    def drop(self, requests: Any) -> None:
        self.dropped += requests


def test_a_message_that_waits_for_the_budget_of_a_later_day_stays_leased(tmp_path, monkeypatch):
    monkeypatch.setattr(pubsub_member, "SubscriberClient", Client)
    subscription = "projects/p/subscriptions/q"
    spec = JobSpec.parse(
        {
            "name": "stream",
            "source": {"type": "pubsub", "subscription": subscription},
            "prompt": {"template": "{{ row.text }}"},
            "model": {"type": "echo"},
            "sink": {"type": "pubsub", "topic": "projects/p/topics/a"},
            "state_uri": str(tmp_path),
        }
    )
    queue = pubsub_member.open_pubsub(spec, spec.source, Publisher())  # type: ignore[arg-type]
    queue.open_member("name", lambda partitions: None, None, None).open()
    leaser = Leaser(manager := Manager(Client.flow))  # type: ignore[arg-type]
    manager.leaser = leaser
    leaser.add([LeaseRequest("id", 1, "", None)])
    leased = leaser._leased_messages
    leased["id"] = leased["id"]._replace(sent_time=time.time() - 6 * 86_400)
    leaser.maintain_leases()
    assert manager.dropped == []
