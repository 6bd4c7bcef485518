"""Command line of the bench of the stream worker."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from kafka_broker import Broker, fetch_jars  # noqa: E402
from llmbeam_sandbox import Latency  # noqa: E402

from airflow_provider_llmbeam.pipeline.stream.windows import merge  # noqa: E402
from bench.stream import __doc__ as description  # noqa: E402
from bench.stream.costs import RUNS, count, fit_costs  # noqa: E402
from bench.stream.group import rows_by_members, watch_group  # noqa: E402
from bench.stream.latency import LOADS, measure, table  # noqa: E402
from bench.stream.plan import steps  # noqa: E402
from bench.stream.recount import count_again, find_differences, sum_increments  # noqa: E402
from bench.stream.trial import (  # noqa: E402
    ANSWERS,
    DEAD_LETTER,
    METRICS,
    WINDOW_SECONDS,
    Setting,
    Trial,
    read_committed,
)
from bench.stream.verdict import judge  # noqa: E402

_MIB = 2**20


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a measurement; returns 1 if something is wrong."""
    options = _parser().parse_args(arguments)
    measurements = (kills, latency, memory, lag, metrics, group, members, costs)
    return int(not {each.__name__: each for each in measurements}[options.what](options))


def kills(options: argparse.Namespace) -> bool:
    """Kills workers and the broker at random moments; returns whether nothing was wrong."""
    plan = steps(options.seed, options.kills, leaves=2, joins=1, brokers=1)
    with _broker() as (broker, directory), Trial(Setting(seed=options.seed), broker, directory) as trial:
        verdict = judge(trial.run(plan))
    found = asdict(verdict) | {"faults": verdict.faults, "recovery_median": median(verdict.recoveries)}
    _print(json.dumps(found, indent=1))
    return not verdict.faults and verdict.paid_twice <= verdict.unrecorded


def latency(options: argparse.Namespace) -> bool:
    """Measures the latency of the worker and of a plain loop."""
    results: dict[str, Any] = {}
    for load in LOADS:
        for contender in ("worker", "plain loop"):
            with _broker() as (broker, directory):
                results.setdefault(load.name, {})[contender] = measure(load, contender, broker, directory)
                _print(f"{load.name}: {contender}: {results[load.name][contender]}")
    _print(table(results))
    if options.out is not None:
        options.out.write_text(json.dumps(results, indent=1, ensure_ascii=False))
    return True


def memory(options: argparse.Namespace) -> bool:
    """Measures the memory of a worker over many messages, of which two cores answer more without a server."""
    job = {"model": {"type": "echo"}, "limits": {"max_in_flight": 256}}
    setting = Setting(partitions=12, keys=1000, rate=options.rate, job=job)
    with _broker() as (broker, directory), Trial(setting, broker, directory) as trial:
        trial.start(0)
        trial.await_partitions()
        process = psutil.Process(trial.workers[0].pid)
        end = time.monotonic() + options.minutes * 60
        while time.monotonic() < end:
            time.sleep(10)
            _print(f"{len(trial.seen):>10,} answers  {process.memory_info().rss / _MIB:6.0f} MiB")
    return True


def lag(options: argparse.Namespace) -> bool:
    """Measures how long a worker takes for the messages of a minute in which it did not run."""
    setting = Setting(partitions=12, keys=1000, rate=options.rate, latency=Latency(mean_seconds=0.05))
    with _broker() as (broker, directory), Trial(setting, broker, directory) as trial:
        trial.start(0)
        trial.await_partitions()
        trial.end(0)
        time.sleep(60)
        begun, behind = time.monotonic(), len(trial.keys) - len(trial.seen)
        trial.start(0)
        while len(trial.keys) - len(trial.seen) > options.rate:  # what a second brings
            time.sleep(0.1)
        _print(f"{behind:,} messages behind, and {options.rate:.0f} more per second: caught up after "
               f"{time.monotonic() - begun:.1f} s, the start of the process included")  # fmt: skip
    return True


def metrics(options: argparse.Namespace) -> bool:
    """Kills workers, and counts their windows again; returns whether the increments add up to the same."""
    plan = steps(options.seed, options.kills, leaves=1, joins=1)
    with _broker() as (broker, directory), Trial(Setting(seed=options.seed), broker, directory) as trial:
        evidence = trial.run(plan)

        def records(topic: str) -> list[Any]:
            return [each for _, each in read_committed(broker.servers, topic, threading.Event(), ends=True)]

        increments = records(METRICS)
        summed = sum_increments(increments)
        counted = count_again(records(ANSWERS), records(DEAD_LETTER), WINDOW_SECONDS)
        waited = [each.at - trial.produced[each.number] for each in evidence.seen]
    different, total = find_differences(counted, summed), merge([{0: each} for each in summed.values()])[0]
    _print(f"{len(increments):,} increments, {len(summed):,} windows, {total.messages:,} messages: "
           f"{len(different)} differences {different[:5]}")  # fmt: skip
    for share in (0.5, 0.95, 0.99):
        seen = quantiles(waited, n=100)[round(share * 100) - 1]
        _print(
            f"p{share * 100:.0f}: windows {total.latency_seconds(share):.3f} s, as a reader saw it {seen:.3f} s"
        )
    return not different and total.answers == len(evidence.keys)


def group(options: argparse.Namespace) -> bool:
    """Kills members of a group that grows, shrinks and is upgraded; returns whether nothing was wrong."""
    with _broker() as (broker, directory):
        found = watch_group(options.seed, options.kills, broker, directory)
    verdict = found.verdict
    figures = asdict(found) | {"faults": verdict.faults, "recovery_median": median(verdict.recoveries)}
    _print(json.dumps(figures, indent=1))
    return not verdict.faults and len(found.versions) == 2


def members(options: argparse.Namespace) -> bool:
    """Measures rows per second against the number of members."""
    with _broker() as (broker, directory):
        for number, rows in rows_by_members(broker, directory).items():
            _print(f"{number} members: {rows:.1f} rows/s")
    return True


def costs(_: argparse.Namespace) -> bool:
    """Measures what a message and a transaction cost."""
    counted = []
    for rate, interval in RUNS:
        with _broker() as (broker, directory):
            counted.append(count(interval, rate, broker, directory))
        _print(json.dumps(asdict(counted[-1]) | {"commit_seconds": counted[-1].commit_seconds}))
    for name in ("worker_seconds", "broker_seconds"):
        second, message, transaction = (1e6 * each for each in fit_costs(name, counted))
        _print(f"{name}: {message:.0f} µs a message, {transaction:.0f} µs a transaction, {second:.0f} µs a second")
    return True


@contextmanager
def _broker() -> Iterator[tuple[Broker, Path]]:
    """Provides a broker, and a folder for the rest."""
    with tempfile.TemporaryDirectory(prefix="llmbeam-stream-", ignore_cleanup_errors=True) as folder:
        (own := Path(folder, "broker")).mkdir()
        with Broker(fetch_jars(), own) as broker:
            yield broker, Path(folder)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.stream", description=description)
    parser.add_argument(
        "what", choices=("kills", "latency", "memory", "lag", "metrics", "group", "members", "costs")
    )
    parser.add_argument("--seed", type=int, default=61)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--rate", type=float, default=200.0, help="messages per second, of memory and lag")
    parser.add_argument("--minutes", type=float, default=10.0, help="of memory")
    parser.add_argument("--out", type=Path, help="JSON file of latency, for bench.stream.plot")
    return parser


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
