"""An hour with machines that share a quota which they are not told, and do not communicate."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate import LearnedRate
from bench.simulation.cases import Case
from bench.simulation.servers import ADVICE, Pool, QuotaServer
from bench.simulation.simulator import Client, Request, Simulation, SimulationResult, result_of

HOUR_SECONDS = 3600.0
RPS, LATENCY_SECONDS = 20.0, 2.7


@dataclass(frozen=True, kw_only=True)
class Hour:
    """Result of an hour.

    Attributes:
        shape: Shape of the quota.
        machines: Number of machines.
        result: What the machines have got of the quota.
    """

    shape: str
    machines: int
    result: SimulationResult


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

    server = QuotaServer({"requests": quota}, ADVICE[case.advice])
    simulation = Simulation(server, clients, latency, rejection_seconds=case.rejection_seconds, seed=case.seed)
    simulation.run(HOUR_SECONDS)
    allowed = quota.capacity if isinstance(quota, Pool) else RPS * HOUR_SECONDS + quota.free_requests()
    return Hour(shape=shape, machines=machines, result=result_of(clients, allowed))


def hours_table(hours: Sequence[Hour]) -> str:
    """Returns one line per hour."""
    lines = [f"{'shape':<14}{'machines':>9}{'of the quota':>14}{'429s':>8}{'Jain':>7}"]
    lines += [
        f"{hour.shape:<14}{hour.machines:>9}{hour.result.utilisation_ratio:>14.1%}"
        f"{hour.result.rejected_ratio:>8.2%}{hour.result.jain:>7.3f}"
        for hour in hours
    ]
    return "\n".join(lines)
