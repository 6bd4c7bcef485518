"""The resident worker: how it ends, with a queue, answers and stores that the test holds."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import pytest

from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.pipeline.stream.journal import PartitionJournal
from airflow_provider_llmbeam.pipeline.stream.order import NoOrder
from airflow_provider_llmbeam.pipeline.stream.partition import Incoming, Partition, Result, Usage
from airflow_provider_llmbeam.pipeline.stream.state import StreamState
from airflow_provider_llmbeam.pipeline.stream.worker import StreamWorker
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.stream import StreamRun

PLACE = ("projects/p/subscriptions/q", 0)
SPEC: dict[str, Any] = {
    "name": "stream",
    "source": {"type": "pubsub", "subscription": PLACE[0]},
    "prompt": {"template": "{{ row.text }}"},
    "model": {"type": "echo"},
    "sink": {"type": "pubsub", "topic": "projects/p/topics/a"},
    "state_uri": "/tmp/llmbeam-stream-test/",
    "stream": {"drain_seconds": 20},
}


class Member:
    """A subscription with messages of some texts; then it has none, or fails."""

    def __init__(self, *texts: str, error: Exception | None = None) -> None:
        self.texts, self.error, self.recorded_at_close = texts, error, list[str]()
        self.recorded: list[str] = []

    def opened(self, on_assigned, on_revoked, on_lost):
        self.on_assigned = on_assigned
        return self

    def open(self):
        self.on_assigned([Partition(PLACE, NoOrder(0), PartitionJournal(known_until=sys.maxsize))])

    def close(self):
        self.recorded_at_close = [*self.recorded]

    def poll(self, most, seconds):
        texts, self.texts = self.texts, ()
        if not texts and self.error is not None:
            raise self.error
        for number, text in enumerate(texts):
            yield PLACE, Incoming(number, text, None, None, {}, b'{"text": "%s"}' % text.encode())
        if not texts:
            time.sleep(seconds)

    def pause(self, places):
        pass

    def lags(self, positions):
        return {}


class Answers:
    """Records the answer to a message; those to "slow" take a moment, and "held" ones wait to be sent.

    A "judged" one waits to be sent, too, once its verdict is there.
    """

    def __init__(self, member: Member) -> None:
        self.member = member

    async def answer(self, partition, message):
        message.is_sent = message.id != "held"
        await asyncio.sleep(0 if message.id == "fast" else 0.3)
        message.is_sent = message.id in ("slow", "fast")
        if not message.is_sent:
            await asyncio.sleep(3600)
        self.member.recorded.append(message.id)

    def close(self):
        pass


class Outputs:
    def result(self, message, row):
        return Result(message, None, None, b"", Usage(None))


class Stores:
    """Stores that take nothing."""

    def put(self, commits):
        raise JobFailedError("the store is down")


def worker_of(member: Member) -> StreamWorker:
    spec = JobSpec.parse(SPEC)
    given: list[Any] = [member.opened, Answers(member), None, Outputs(), Stores(), StreamState(), None, None]
    return StreamWorker(spec, spec.source, StreamRun(), *given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        (Member("fast", "slow", "slow", "held", "judged"), "the store is down"),
        (Member("slow", "slow", "held", "judged", error=JobFailedError("no subscription")), "no subscription"),
    ],
)
def test_a_worker_that_ends_by_an_error_first_records_what_is_in_flight_and_leaves_the_rest(member, reason):
    async def main() -> None:
        began_at = time.monotonic()
        with pytest.raises(JobFailedError, match=reason):
            await worker_of(member).run()
        assert member.recorded_at_close[-2:] == ["slow", "slow"]
        assert time.monotonic() - began_at < 15, "messages that are not sent were awaited"

    asyncio.run(main())


def test_what_is_not_answered_within_its_bound_is_awaited_once(monkeypatch):
    monkeypatch.setitem(SPEC, "stream", {"drain_seconds": 0})
    member = Member("slow", error=JobFailedError("no subscription"))

    async def main() -> None:
        worker = worker_of(member)
        with pytest.raises(JobFailedError):
            await worker.run()
        assert member.recorded_at_close == []
        assert worker._partitions[PLACE].open == set()

    asyncio.run(main())
