"""Stream workers at a rate that needs many: latency of one process, then processes, brokers, state and cost.

One process is simulated with the classes that order and commit its answers, without clock and network; what a
message and a transaction take was measured with `python -m bench.stream costs`. `python -m bench.fleet.streams`
prints the tables of docs/evidence/stream-scale.md.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles

from airflow_provider_llmbeam.pipeline.stream.flow import seconds_to_commit
from airflow_provider_llmbeam.pipeline.stream.order import PartitionOrder
from airflow_provider_llmbeam.spec import StreamOptions
from bench.fleet.tables import format_table
from bench.fleet.totals import GB_HOUR_USD, INPUT_USD, OUTPUT_USD, VCPU_HOUR_USD
from bench.venvs import plot_python

#: Least time between two looks for what may be committed, as the worker polls in between, in seconds.
POLL_SECONDS = 0.005
#: Copies of each record, and share of their time in which processors are busy at most.
COPIES, BUSY = 3, 0.6
#: Memory of a process and of a broker, in GB, and processors of a broker.
PROCESS_GB, BROKER_GB, BROKER_CORES = 1.0, 32.0, 8


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was measured of one process and one broker on two slow cores.

    Attributes:
        worker_message: Time of a processor that a worker takes for a message, its part of a transaction
            included, in seconds.
        worker_second: Time of a processor that a worker takes in each second besides.
        broker_message: Time of a processor that a broker takes for a message, in seconds.
        broker_transaction: The same for a transaction over four partitions of each topic.
        commit_seconds: Duration of a transaction.
        asked_seconds: Time from a message to its request, without a queue.
        message_bytes: Size of the records of a message, by topic.
        state_bytes: Size of a conversation of ten turns.
        restore_seconds: Time to read one of them.
    """

    worker_message: float
    worker_second: float
    broker_message: float
    broker_transaction: float
    commit_seconds: float
    asked_seconds: float
    message_bytes: Mapping[str, float]
    state_bytes: float
    restore_seconds: float


@dataclass(frozen=True, kw_only=True)
class StreamCase:
    """A load of conversations.

    Attributes:
        users: Number of users.
        turns: Turns of a conversation.
        messages_per_second: Messages of all users together.
        p95_seconds: Time from a message to its answer that 95 % may take.
        model_seconds: Mean latency of the model.
        model_sigma: Spread of it, of the logarithm.
        partitions_per_process: Partitions that a process owns.
        input_tokens: Input tokens of a message, with its history.
        output_tokens: Output tokens of a message.
    """

    users: int = 200_000
    turns: int = 10
    messages_per_second: float = 150_000.0
    p95_seconds: float = 0.3
    model_seconds: float = 0.1
    model_sigma: float = 0.3
    partitions_per_process: int = 4
    input_tokens: int = 200
    output_tokens: int = 50


@dataclass(frozen=True, kw_only=True)
class Latencies:
    """Latency of a process, in seconds; infinite if its processor is full.

    Attributes:
        rate: Messages per second.
        interval_ms: `stream.commit_interval_ms`.
        p50: From a message to its visible answer, of half of them.
        p95: The same of 95 %.
        beyond_p95: The same without the time of the model.
        transactions: Transactions per second.
    """

    rate: float
    interval_ms: int
    p50: float
    p95: float
    beyond_p95: float
    transactions: float = 0.0


def simulate(
    case: StreamCase, measured: Measured, rate: float, interval_ms: int, *, seconds: float = 30.0, seed: int = 0
) -> Latencies:
    """Simulates one process: its messages queue for its processor, are answered, put in order and committed."""
    message_seconds = measured.worker_message / (1 - measured.worker_second)
    if rate * message_seconds >= 1:
        return Latencies(rate=rate, interval_ms=interval_ms, p50=math.inf, p95=math.inf, beyond_p95=math.inf)
    chance, options = random.Random(seed), StreamOptions(commit_interval_ms=interval_ms)
    mean = math.log(case.model_seconds) - case.model_sigma**2 / 2
    orders = [PartitionOrder[int](0) for _ in range(case.partitions_per_process)]
    offsets = [0] * len(orders)
    begun: list[float] = []
    model: list[float] = []
    ended: list[float] = []
    answered: list[tuple[float, int, int, int]] = []
    arrival, free_at, committed_at, transactions, now = chance.expovariate(rate), 0.0, 0.0, 0, 0.0
    while now < seconds:
        while arrival <= now:
            place, number = chance.randrange(len(orders)), len(begun)
            free_at = max(free_at, arrival) + message_seconds
            model.append(chance.lognormvariate(mean, case.model_sigma))
            begun.append(arrival)
            ended.append(math.inf)
            orders[place].take(offsets[place])
            at = free_at + measured.asked_seconds + model[number]
            heapq.heappush(answered, (at, place, offsets[place], number))
            offsets[place] += 1
            arrival += chance.expovariate(rate)
        while answered and answered[0][0] <= now:
            _, place, offset, number = heapq.heappop(answered)
            orders[place].settle(offset, number, 1)
        ready = [[*order.ready(options.max_answers)] for order in orders]
        count = sum(map(len, ready))
        if seconds_to_commit(count, None, committed_at, measured.commit_seconds, options, now) > 0:
            now += POLL_SECONDS
            continue
        left = options.max_answers
        committed_at = now = now + measured.commit_seconds
        transactions += 1
        for order, found in zip(orders, ready, strict=True):
            for _, number in found[:left]:
                ended[number] = now
            if found[:left]:
                order.commit(found[:left][-1][0] + 1)
            left = max(0, left - len(found))
    # What came in the last fifth may be under way.
    counted = [number for number, at in enumerate(begun) if seconds * 0.1 < at < seconds * 0.8]
    whole = quantiles([ended[number] - begun[number] for number in counted], n=100)
    beyond = quantiles([ended[number] - begun[number] - model[number] for number in counted], n=100)
    return Latencies(
        rate=rate,
        interval_ms=interval_ms,
        p50=whole[49],
        p95=whole[94],
        beyond_p95=beyond[94],
        transactions=transactions / seconds,
    )


@dataclass(frozen=True, kw_only=True)
class StreamFleet:
    """What a load needs.

    Attributes:
        processes: Processes, each on a processor of its own.
        partitions: Partitions of each topic.
        broker_cores: Processors of brokers.
        brokers: Brokers of `BROKER_CORES`.
        transactions: Transactions per second.
        gigabits: Traffic into the brokers, copies included, in Gbit/s.
        state_gb: Conversations of all users, without copies.
        restore_seconds: Time to read those of one process.
        in_flight: Requests in flight.
        workers_usd: Cost of the processes, per hour.
        brokers_usd: Cost of the brokers, per hour.
        tokens_usd: Cost of the tokens, per hour.
    """

    processes: int
    partitions: int
    broker_cores: float
    brokers: int
    transactions: float
    gigabits: float
    state_gb: float
    restore_seconds: float
    in_flight: float
    workers_usd: float
    brokers_usd: float
    tokens_usd: float


def fleet_of(case: StreamCase, measured: Measured, one: Latencies) -> StreamFleet:
    """Adds up what a load needs of processes like one."""
    processes = math.ceil(case.messages_per_second / one.rate)
    transactions = processes * one.transactions
    # A copy is read by its follower and written once more: counted as a message of its own, which is too much.
    broker_seconds = (
        case.messages_per_second * measured.broker_message + transactions * measured.broker_transaction
    )
    broker_cores = COPIES * broker_seconds / BUSY
    brokers = max(COPIES, math.ceil(broker_cores / BROKER_CORES))
    written = case.messages_per_second * sum(measured.message_bytes.values())
    tokens = case.input_tokens * INPUT_USD + case.output_tokens * OUTPUT_USD
    return StreamFleet(
        processes=processes,
        partitions=processes * case.partitions_per_process,
        broker_cores=broker_cores,
        brokers=brokers,
        transactions=transactions,
        gigabits=written * COPIES * 8 / 1e9,
        state_gb=case.users * measured.state_bytes / 1e9,
        restore_seconds=case.users / processes * measured.restore_seconds,
        in_flight=case.messages_per_second * case.model_seconds,
        workers_usd=processes * (VCPU_HOUR_USD + PROCESS_GB * GB_HOUR_USD),
        brokers_usd=brokers * (BROKER_CORES * VCPU_HOUR_USD + BROKER_GB * GB_HOUR_USD),
        tokens_usd=case.messages_per_second * 3600 * tokens / 1e6,
    )


#: By `python -m bench.stream costs` on 29 November 2026; docs/evidence/stream-scale.md says how.
MEASURED = Measured(
    worker_message=1.4e-3,
    worker_second=0.16,
    broker_message=0.7e-3,
    broker_transaction=7.6e-3,
    commit_seconds=0.04,
    asked_seconds=0.004,
    message_bytes={"questions": 111, "answers": 180, "journal": 504, "history": 1144, "metrics": 13},
    state_bytes=4469,
    restore_seconds=3.1e-5,
)
#: Messages per second of a process, and commit intervals, that are simulated.
RATES, INTERVALS_MS = (100, 200, 300, 400, 500, 550, 580, 600), (50, 100, 200)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the tables; returns 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.fleet.streams", description=__doc__)
    parser.add_argument("--plot", type=Path, metavar="PNG", help="plot the latency against the rate of a process")
    options = parser.parse_args(arguments)
    case = StreamCase()
    found = [simulate(case, MEASURED, rate, interval) for interval in INTERVALS_MS for rate in RATES]
    best = max((each for each in found if each.p95 <= case.p95_seconds), key=lambda each: each.rate)
    tables = (latency_table(found), fleet_table(fleet_of(case, MEASURED, best), best))
    sys.stdout.write("\n\n".join(tables) + "\n")
    if options.plot is None:
        return 0
    command = [str(plot_python()), "-m", "bench.fleet.stream_plot", str(options.plot.resolve())]
    content = json.dumps({"p95_seconds": case.p95_seconds, "latencies": [asdict(each) for each in found]})
    return subprocess.run(command, input=content, text=True, check=False).returncode


def latency_table(latencies: Iterable[Latencies]) -> str:
    """Returns a line for each rate, with a column for each interval."""
    by_rate: dict[float, list[str]] = {}
    for each in latencies:
        cell = "falls behind" if math.isinf(each.p95) else f"{1000 * each.p95:.0f} ({1000 * each.beyond_p95:.0f})"
        by_rate.setdefault(each.rate, []).append(cell)
    titles = ["messages per second", *(f"commits each {interval} ms" for interval in INTERVALS_MS)]
    return format_table(titles, [[f"{rate:.0f}", *cells] for rate, cells in by_rate.items()])


def fleet_table(fleet: StreamFleet, one: Latencies) -> str:
    """Returns what a load needs."""
    return format_table(
        ("part", "what it takes"),
        [
            [
                "processes",
                f"{fleet.processes:,}: each {one.rate:.0f} messages per second, commits each {one.interval_ms} ms",
            ],
            ["partitions", f"{fleet.partitions:,} of each topic"],
            [
                "brokers",
                f"{fleet.brokers:,} of {BROKER_CORES} cores: {fleet.broker_cores:,.0f} cores, at most "
                f"{100 * BUSY:.0f} % busy, with {COPIES} copies",
            ],
            ["transactions", f"{fleet.transactions:,.0f} per second"],
            ["written by brokers", f"{fleet.gigabits:.1f} Gbit/s, copies included"],
            [
                "state",
                f"{fleet.state_gb:.2f} GB of conversations; a new owner reads those of one process in "
                f"{fleet.restore_seconds:.2f} s",
            ],
            ["requests in flight", f"{fleet.in_flight:,.0f}"],
            ["cost of processes", f"${fleet.workers_usd:,.0f} per hour"],
            ["cost of brokers", f"${fleet.brokers_usd:,.0f} per hour, without disks"],
            ["cost of tokens", f"${fleet.tokens_usd:,.0f} per hour"],
        ],
    )


if __name__ == "__main__":
    raise SystemExit(main())
