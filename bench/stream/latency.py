"""Latency of the stream worker beside a plain consumer loop on the same messages, and what an answer waits for.

For each message four moments are known: produced, received by the model server, answered by it, and seen by a
reader with `read_committed`. The latency without the model is seen - produced - (answered - received).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

from kafka_broker import Broker
from llmbeam_sandbox import Latency

from bench.stream.trial import Setting, Trial

#: Percentiles that are shown.
PERCENTILES = (50, 95, 99)
#: Messages at the start that are left out: the members join, the clients connect.
_WARM_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A load.

    Attributes:
        name: Its name.
        rate: Messages per second.
        latency: Latency of the server.
        seconds: Its duration, in seconds.
    """

    name: str
    rate: float
    latency: Latency
    seconds: float = 30.0


LOADS = (
    Load(name="200/s, 50 ms", rate=200.0, latency=Latency(mean_seconds=0.05)),
    Load(name="40/s, 800 ms σ 0.2", rate=40.0, latency=Latency(mean_seconds=0.8, sigma=0.2)),
)


def measure(load: Load, contender: str, broker: Broker, directory: Path, partitions: int = 12) -> dict[str, Any]:
    """Measures a contender, `worker` or `plain loop`, under a load.

    Returns:
        Percentiles of the figures, and the number of messages.
    """
    setting = Setting(partitions=partitions, keys=400, rate=load.rate, latency=load.latency)
    with Trial(setting, broker, directory) as trial:
        if contender == "worker":
            trial.start(0)
        else:
            trial.launch(0, ["-m", "bench.stream.plain_loop", broker.servers, "plain", trial.url])
        trial.await_partitions()
        begun = time.time() + _WARM_SECONDS
        time.sleep(_WARM_SECONDS + load.seconds)
        trial.finish()
        evidence, produced = trial.evidence(), trial.produced
    whole, asked, held = [], [], []
    for seen in evidence.seen:
        sent = evidence.requests[seen.number][-1]
        if produced[seen.number] >= begun and sent.answered_at is not None:
            whole.append(seen.at - produced[seen.number] - (sent.answered_at - sent.at))
            asked.append(sent.at - produced[seen.number])
            held.append(seen.at - sent.answered_at)
    parts = {"produced to visible, less the model": whole, "produced to asked": asked, "answered to visible": held}
    return {name: percentiles(seconds) for name, seconds in parts.items()} | {"messages": len(whole)}


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Returns percentiles, in milliseconds."""
    every = quantiles(seconds, n=100, method="inclusive")
    return {f"p{percent}": round(1000 * every[percent - 1], 1) for percent in PERCENTILES}


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Formats the results as a table of Markdown."""
    head = ["load", "contender", "figure", *(f"p{percent}" for percent in PERCENTILES)]
    lines = [head, ["---"] * len(head)]
    for load, by_contender in results.items():
        for contender, figures in by_contender.items():
            for figure, values in figures.items():
                if isinstance(values, dict):
                    lines.append([load, contender, figure, *(f"{value:,.0f} ms" for value in values.values())])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
