"""What a message and a transaction cost a worker and a broker, in time of a processor and in bytes.

Time of a processor depends less on what else runs than durations do. Runs with few messages or few transactions
tell the cost of a message from that of a transaction.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import psutil
from kafka_broker import Broker
from llmbeam_sandbox import Latency
from scipy.optimize import nnls  # type: ignore[import-untyped]

from bench.stream.trial import ANSWERS, JOURNAL, METRICS, QUESTIONS, Setting, Trial, read_committed

HISTORY = "history"
#: Users that talk, turns of a history, and partitions of each topic.
USERS, TURNS, PARTITIONS = 400, 10, 4
WARM_SECONDS, SECONDS = 30.0, 40.0
#: Messages per second and commit interval of each run.
RUNS = ((400, 50), (400, 1000), (100, 50))
_TOPICS = (QUESTIONS, ANSWERS, JOURNAL, HISTORY, METRICS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What was counted in one run.

    Attributes:
        interval_ms: The interval, in milliseconds.
        messages: Number of answers.
        transactions: Number of transactions.
        worker_seconds: Time of a processor that the worker took.
        broker_seconds: Time of a processor that the broker took.
        topic_bytes: Size of what was written to each topic, as the broker stores it.
        worker_mib: Memory of the worker at the end.
        state_bytes: Size of the turns of a conversation in its topic, before compression.
        restore_seconds: Time to read a record of that topic.
    """

    interval_ms: int
    messages: int
    transactions: int
    worker_seconds: float
    broker_seconds: float
    topic_bytes: Mapping[str, int]
    worker_mib: float
    state_bytes: float
    restore_seconds: float

    @property
    def commit_seconds(self) -> float:
        """Duration of a transaction: the next one begins an interval after its end."""
        return max(0.0, SECONDS / self.transactions - self.interval_ms / 1000)


def count(interval_ms: int, rate: float, broker: Broker, directory: Path) -> Counted:
    """Runs one worker with conversations, and counts."""
    setting = Setting(
        partitions=PARTITIONS,
        keys=USERS,
        rate=rate,
        latency=Latency(mean_seconds=0.1),
        commit_interval_ms=interval_ms,
        job={"conversation": {"key": "kafka_key", "max_turns": TURNS}, "limits": {"max_in_flight": 256}},
        stream={"history_topic": HISTORY, "create_topics": True},
    )
    with Trial(setting, broker, directory) as trial:
        trial.start(0)
        trial.await_partitions()
        time.sleep(WARM_SECONDS)
        worker, java = psutil.Process(trial.workers[0].pid), psutil.Process(broker.process_id)
        before = _read(trial, worker, java, directory)
        time.sleep(SECONDS)
        after = _read(trial, worker, java, directory)
        worker_mib = worker.memory_info().rss / 2**20
        trial.finish()
        begun = time.monotonic()
        states = [record.value() for _, record in read_committed(broker.servers, HISTORY, Event(), ends=True)]
        seconds = time.monotonic() - begun
    last = states[-USERS:]
    return Counted(
        interval_ms=interval_ms,
        **{name: after[name] - before[name] for name in after if name not in _TOPICS},
        topic_bytes={topic: after[topic] - before[topic] for topic in _TOPICS},
        worker_mib=worker_mib,
        state_bytes=sum(map(len, last)) / len(last),
        restore_seconds=seconds / len(states),
    )


def _read(trial: Trial, worker: psutil.Process, java: psutil.Process, directory: Path) -> dict[str, Any]:
    line = trial.last_counts(0)
    return {
        "messages": line["committed"],
        "transactions": line["transactions"],
        "worker_seconds": sum(worker.cpu_times()[:2]),
        "broker_seconds": sum(java.cpu_times()[:2]),
        **{topic: _size(directory / "broker" / "data", topic) for topic in _TOPICS},
    }


def _size(data: Path, topic: str) -> int:
    folders = (each for each in data.iterdir() if re.fullmatch(rf"{topic}-\d+", each.name))
    return sum(file.stat().st_size for folder in folders for file in folder.glob("*.log"))


def fit_costs(name: str, counted: Sequence[Counted]) -> tuple[float, float, float]:
    """Returns what a second, a message and a transaction take, none of them less than nothing."""
    counts = [(SECONDS, each.messages, each.transactions) for each in counted]
    second, message, transaction = nnls(np.array(counts), np.array([getattr(each, name) for each in counted]))[0]
    return float(second), float(message), float(transaction)
