"""A stream worker with a planted fault: `python -m tests.pipeline.wrong_stream_worker FAULT --spec …`.

The harness of `bench.stream` has to see each of them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Producer

from airflow_provider_llmbeam.pipeline.__main__ import main
from airflow_provider_llmbeam.pipeline.stream.journal_writer import JournalWriter
from airflow_provider_llmbeam.pipeline.stream.member import Member
from airflow_provider_llmbeam.pipeline.stream.partition import Commit

#: Time between the two halves of what should be one transaction, in seconds.
PAUSE_SECONDS = 2.0
_commit = Member.commit


def _produce(self: Any, commits: Sequence[Commit]) -> None:
    producer = Producer({"bootstrap.servers": self._client.settings()["bootstrap.servers"], "linger.ms": 1})
    for result in (result for commit in commits for result in commit.results):
        producer.produce(result.topic, result.value, result.key)
    producer.flush()


def _move_positions(self: Any, commits: Sequence[Commit]) -> None:
    self._consumer.commit(offsets=self._positions(commits), asynchronous=False)


def commit_positions_first(self: Any, commits: Sequence[Commit], *_: Any) -> bool:
    """Moves the positions before the answers are there: a kill in between loses them."""
    _move_positions(self, commits)
    time.sleep(PAUSE_SECONDS)
    _produce(self, commits)
    return True


def commit_without_transactions(self: Any, commits: Sequence[Commit], *_: Any) -> bool:
    """Moves the positions after the answers: a kill in between sends them twice."""
    _produce(self, commits)
    time.sleep(PAUSE_SECONDS)
    _move_positions(self, commits)
    return True


def commit_increments_first(
    self: Any, commits: Sequence[Commit], at_ms: int, increment: tuple[bytes, bytes]
) -> bool:
    """Writes an increment outside its transaction: after a kill in between it counts twice."""
    producer = Producer({"bootstrap.servers": self._client.settings()["bootstrap.servers"], "linger.ms": 1})
    producer.produce(self._topics.metrics, increment[1], increment[0])
    producer.flush()
    time.sleep(PAUSE_SECONDS)
    return _commit(self, commits, at_ms, None)


async def write_nothing(self: Any, *_: Any) -> None:
    """Keeps nothing of what is paid."""


FAULTS: dict[str, tuple[type, str, Any]] = {
    "positions-first": (Member, "commit", commit_positions_first),
    "no-transactions": (Member, "commit", commit_without_transactions),
    "increments-first": (Member, "commit", commit_increments_first),
    "no-journal": (JournalWriter, "write", write_nothing),
}

if __name__ == "__main__":
    owner, name, fault = FAULTS[sys.argv[1]]
    setattr(owner, name, fault)
    sys.exit(main(sys.argv[2:]))
