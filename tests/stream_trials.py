"""Trials of stream workers on a real broker, beside other tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llmbeam_sandbox import Latency

from bench.stream.trial import Setting, Trial
from tests.kafka import kafka_broker


@contextmanager
def stream_trial(directory: Path, **setting: Any) -> Iterator[Trial]:
    """Provides a trial with as many requests in flight as in the bench, but a fourth of its messages per second.

    What happens is waited for, and messages come all the time: workers that share two cores with other tests fell
    behind with those of the bench, and four kills took 17 minutes.
    """
    (folder := directory / "broker").mkdir()
    slow = Setting(rate=15.0, latency=Latency(mean_seconds=0.8, sigma=0.4), **setting)
    with kafka_broker(folder) as broker, Trial(slow, broker, directory) as trial:
        yield trial
