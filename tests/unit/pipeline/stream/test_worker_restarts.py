"""The resident worker beside a queue that fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.pipeline.columns import OutputColumns
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow, RowPrompt
from airflow_provider_llmbeam.pipeline.stream import flow, worker
from airflow_provider_llmbeam.pipeline.stream.journal import PartitionJournal
from airflow_provider_llmbeam.pipeline.stream.member import RestartError
from airflow_provider_llmbeam.pipeline.stream.metrics import Metrics
from airflow_provider_llmbeam.pipeline.stream.order import PartitionOrder
from airflow_provider_llmbeam.pipeline.stream.outputs import Outputs
from airflow_provider_llmbeam.pipeline.stream.partition import Incoming, Message, Partition, Place
from airflow_provider_llmbeam.pipeline.stream.state import StreamState
from airflow_provider_llmbeam.pipeline.stream.stores import Stores
from airflow_provider_llmbeam.pipeline.stream.topics import Topics
from airflow_provider_llmbeam.pipeline.stream.worker import StreamWorker
from airflow_provider_llmbeam.spec.stream import StreamRun
from tests.outcomes import completion
from tests.stream_jobs import stream_job

PLACE = ("q", 0)
TOPICS = Topics(source=("q",), answers="a", dead_letter="d", journal="j", history=None, group="g")


class FailingMember:
    """A member that is assigned a partition with one message, which it cannot commit.

    Args:
        error: What it raises; `None` aborts its transactions.
        state: The state of the worker, which is stopped at the first transaction if it is aborted.
        on_assigned: Takes the partition.
    """

    def __init__(self, error: Exception | None, state: StreamState, on_assigned: Any) -> None:
        self._error, self._state, self._on_assigned = error, state, on_assigned
        self._unread = list[Incoming]()
        self.tries = self.opened = 0

    def open(self) -> None:
        self.opened += 1
        self._unread = [
            Incoming(
                0,
                "q:0:0",
                b"k",
                None,
                {"kafka_topic": "q", "kafka_partition": 0, "kafka_offset": 0},
                b'{"text": "a"}',
            )
        ]
        self._on_assigned([Partition(PLACE, PartitionOrder(0), PartitionJournal())])

    def close(self) -> None:
        pass

    def poll(self, most: int, seconds: float) -> Iterator[tuple[Place, Incoming | None]]:
        time.sleep(0.01)
        while self._unread and most:
            yield PLACE, self._unread.pop()

    def pause(self, places: frozenset[Place]) -> None:
        pass

    def lags(self, positions: Any) -> dict[Place, int]:
        return {}

    def machines(self) -> None:
        return None

    def commit(self, commits: Any, at_ms: int, increment: Any) -> bool:
        self.tries += 1
        if self._error is not None:
            raise self._error
        self._state.is_stopping = True
        return False


class EchoAnswers:
    """Answers each message at once."""

    async def answer(self, partition: Partition, message: Message) -> AnsweredRow:
        assert isinstance(message.prompt, RowPrompt)
        return AnsweredRow(message.prompt.row, "f", completion(), "fresh")

    def close(self) -> None:
        pass


def run_beside(
    error: Exception | None, tmp_path: Any, **options: Any
) -> tuple[FailingMember, JobFailedError | None]:
    """Runs a worker beside such a member; returns it, and with what the worker has ended."""
    spec = stream_job(state_uri=str(tmp_path), stream=options)
    members = list[FailingMember]()

    async def run() -> None:
        state = StreamState()
        outputs = Outputs(OutputColumns.of(spec), None, TOPICS, 1000, has_stores=False)

        def open_member(on_assigned: Any, *_: Any) -> FailingMember:
            members.append(FailingMember(error, state, on_assigned))
            return members[0]

        source, answers, metrics = spec.source, EchoAnswers(), Metrics(spec, "w-0", state, None, None)
        stores = Stores([], outputs)
        await StreamWorker(
            spec,
            source,
            StreamRun(),
            open_member,
            answers,
            None,
            outputs,
            stores,
            state,
            metrics,
            None,  # type: ignore[arg-type]
        ).run()

    try:
        asyncio.run(asyncio.wait_for(run(), 30))
    except JobFailedError as failed:
        return members[0], failed
    return members[0], None


def test_a_worker_that_cannot_commit_ends_when_its_time_to_drain_is_over(tmp_path, caplog):
    member, failed = run_beside(None, tmp_path, drain_seconds=0.5)
    assert failed is None
    assert 2 <= member.tries <= 8  # with pauses
    assert "The last answers are in the journal, and not committed" in caplog.text


def test_a_worker_that_joins_again_and_again_and_commits_nothing_ends_with_the_cause(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "_RETRY_SECONDS", 0.01)
    for module in (flow, worker):
        monkeypatch.setattr(module, "MAX_DOWN_SECONDS", 0.5)
    member, failed = run_beside(RestartError("it is fenced"), tmp_path)
    assert member.opened > 1
    assert "again and again for 0 s, and could not go on: it is fenced. The answers so far are" in str(failed)
