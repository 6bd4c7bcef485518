"""The governor against a simulated server: an hour in seconds, no clock, no network."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_llmbeam.engine.governor import Governor
from airflow_provider_llmbeam.sandbox.quota import Quota, QuotaLedger

#: How long a 429 takes to come back.
REJECTION_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """What came out.

    Attributes:
        utilisation_ratio: Admitted requests over what the quota allows, after the warm-up.
        rejected_ratio: 429s over all requests, after the warm-up.
        jain: Fairness between machines, 1 is equal.
    """

    utilisation_ratio: float
    rejected_ratio: float
    jain: float


def simulate(
    make_governor: Callable[[], Governor],
    *,
    machines: int,
    requests_per_minute: float,
    seconds: float = 3600,
    warm_up_seconds: float = 300,
    latency_seconds: float = 2.7,
    seed: int = 0,
) -> Simulated:
    """Runs machines with endless work against one quota; they cannot talk to each other."""
    chances = random.Random(seed)
    ledger = QuotaLedger(Quota(requests_per_minute=int(requests_per_minute)))
    slots = max(2, int(3 * requests_per_minute / 60 * latency_seconds / machines))
    governors = [make_governor() for _ in range(machines)]
    free = [slots] * machines
    wakes = [0.0] * machines
    admitted, rejected = [0] * machines, 0
    events: list[tuple[float, int, Callable[[float], None]]] = []
    numbers = itertools.count()

    def at(time: float, action: Callable[[float], None]) -> None:
        heapq.heappush(events, (time, next(numbers), action))

    def pump(machine: int) -> Callable[[float], None]:
        def go(now: float) -> None:
            nonlocal rejected
            while free[machine]:
                if (wait := governors[machine].admit(now, 1)) > 0:
                    if now + wait < wakes[machine] or wakes[machine] <= now:
                        wakes[machine] = now + wait
                        at(now + wait, pump(machine))
                    return
                free[machine] -= 1
                refusal = ledger.admit(now, 1)
                if refusal is None:
                    admitted[machine] += now >= warm_up_seconds
                    at(now + latency_seconds * chances.lognormvariate(-0.32, 0.8), done(machine, None))
                else:
                    rejected += now >= warm_up_seconds
                    at(now + REJECTION_SECONDS, done(machine, refusal.retry_delay_seconds))

        return go

    def done(machine: int, retry_after_seconds: float | None) -> Callable[[float], None]:
        def go(now: float) -> None:
            free[machine] += 1
            if retry_after_seconds is None:
                governors[machine].settle(0, 0, is_answered=True)
            else:
                governors[machine].rejected(now, retry_after_seconds, chances.random())
            pump(machine)(now)

        return go

    for machine in range(machines):
        at(chances.uniform(0, 2), pump(machine))
    while events and events[0][0] <= seconds:
        now, _, action = heapq.heappop(events)
        action(now)
    total = sum(admitted)
    possible = (seconds - warm_up_seconds) * requests_per_minute / 60
    squares = sum(count * count for count in admitted)
    return Simulated(
        utilisation_ratio=total / possible,
        rejected_ratio=rejected / max(1, total + rejected),
        jain=total * total / (machines * squares) if squares else 0.0,
    )
