"""An hour with machines that share a quota which they are not told, and do not communicate."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_llmbeam.engine.pacing.learned_rate import LearnedRate
from bench.simulation.cases import Case
from bench.simulation.servers import ADVICE, Pool, QuotaServer
from bench.simulation.simulator import Client, Request, Simulation

HOUR_SECONDS = 3600.0
RPS, LATENCY_SECONDS = 20.0, 2.7


@dataclass(frozen=True, kw_only=True)
class Hour:
    """Result of an hour.

    Attributes:
        shape: Shape of the quota.
        machines: Number of machines.
        utilisation_ratio: Admitted requests over those that the quota allows.
        rejected_ratio: 429s over all requests.
        jain: Jain's fairness index of the machines; 1 means equal shares.
    """

    shape: str
    machines: int
    utilisation_ratio: float
    rejected_ratio: float
    jain: float


def simulate_hour(shape: str, machines: int) -> Hour:
    """Simulates an hour of a quota of 20 requests per second, with a retry delay in whole seconds."""
    case = Case(
        shape=shape,
        rps=RPS,
        seconds=1.0 if shape == "small bucket" else 20.0,
        advice="whole seconds",
        latency_seconds=LATENCY_SECONDS,
        rejection_seconds=0.05,
        rows=0,
        slots=64,
        used=0.0,
        seed=machines,
    )
    quota = case.quota()
    clients = [Client(LearnedRate(), itertools.repeat(Request()), case.slots) for _ in range(machines)]

    def latency(rng: random.Random) -> float:
        return LATENCY_SECONDS * rng.lognormvariate(-0.32, 0.8)

    server = QuotaServer(quota, ADVICE[case.advice])
    Simulation(server, clients, latency, rejection_seconds=case.rejection_seconds, seed=case.seed).run(
        HOUR_SECONDS
    )
    admitted = [sum(record.is_billed for record in client.records) for client in clients]
    total, requests = sum(admitted), sum(len(client.records) for client in clients)
    allowed = quota.capacity if isinstance(quota, Pool) else RPS * HOUR_SECONDS + quota.free_requests()
    return Hour(
        shape=shape,
        machines=machines,
        utilisation_ratio=total / allowed,
        rejected_ratio=(requests - total) / requests,
        jain=total * total / (machines * sum(count * count for count in admitted)),
    )


def hours_table(hours: Sequence[Hour]) -> str:
    """Returns one line per hour."""
    lines = [f"{'shape':<14}{'machines':>9}{'of the quota':>14}{'429s':>8}{'Jain':>7}"]
    lines += [
        f"{hour.shape:<14}{hour.machines:>9}{hour.utilisation_ratio:>14.1%}{hour.rejected_ratio:>8.2%}"
        f"{hour.jain:>7.3f}"
        for hour in hours
    ]
    return "\n".join(lines)
