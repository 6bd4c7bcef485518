"""Cases of servers whose quota the governor is not told, drawn at random."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_llmbeam.engine.pacing.gate import Admission
from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate import LearnedRate
from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate_state import LearnedRateState
from airflow_provider_llmbeam.transport.server_reply import QuotaUnit
from bench.simulation.servers import (
    ADVICE,
    Bucket,
    FixedWindow,
    Pool,
    Quota,
    QuotaServer,
    SlidingLog,
    Unlimited,
)
from bench.simulation.simulator import Client, Request, Simulation

SHAPES = ("bucket", "small bucket", "sliding log", "fixed window", "pool", "no limit")
#: Most 429s: a share of the requests, or a number.
MOST_REJECTED_SHARE, MOST_REJECTED = 0.02, 8
MOST_TIME, POOL_SHARE, POOL_REJECTED_SHARE = 1.25, 0.85, 0.05


@dataclass(frozen=True, kw_only=True)
class Case:
    """A server and the work.

    Attributes:
        shape: One of `SHAPES`.
        rps: Requests per second of the quota in the long run.
        seconds: Burst of a bucket, or period of a window, in seconds.
        advice: One of `ADVICE`.
        latency_seconds: Mean latency of an answer.
        rejection_seconds: Latency of a 429.
        rows: Number of requests to be answered.
        slots: Maximum number of requests in flight.
        used: Share of the burst or of the window that others have used at the beginning.
        seed: Seed of all random numbers.
        names_unit: Whether a 429 says what the quota counts that is used up.
    """

    shape: str
    rps: float
    seconds: float
    advice: str
    latency_seconds: float
    rejection_seconds: float
    rows: int
    slots: int
    used: float
    seed: int
    names_unit: bool = False

    @classmethod
    def draw(cls, seed: int) -> Case:
        """Draws a case."""
        rng = random.Random(seed)
        rps = math.exp(rng.uniform(math.log(0.4), math.log(600.0)))
        latency = math.exp(rng.uniform(math.log(0.04), math.log(5.0)))
        shape = SHAPES[seed % len(SHAPES)]
        seconds = rng.uniform(0.0, 2.0) if shape == "small bucket" else rng.uniform(2.0, 60.0)
        if shape in ("sliding log", "fixed window"):
            seconds = rng.choice([seconds, 1.0, 20.0, 60.0])
        return cls(
            shape=shape,
            rps=rps,
            seconds=seconds,
            advice=rng.choice(list(ADVICE)),
            latency_seconds=latency,
            rejection_seconds=math.exp(rng.uniform(math.log(0.005), math.log(0.15))),
            rows=int(min(20_000, max(60, rps * rng.uniform(40.0, 200.0)))),
            slots=max(64, math.ceil(2 * rps * latency)),
            used=max(0.0, rng.uniform(-2.0, 1.0)),
            seed=seed,
        )

    @property
    def title(self) -> str:
        """Name of the group of cases in tables."""
        return self.shape

    def quotas(self) -> dict[QuotaUnit, Quota]:
        """Returns the quotas of the server by what they count."""
        return {"requests": self.quota()}

    def requests(self) -> list[Request]:
        """Returns the work in the order in which it is sent."""
        return [Request()] * self.rows

    def quota(self, rps: float | None = None) -> Quota:
        """Returns a quota of the case's shape, of `rps` requests or tokens per second."""
        rng = random.Random(-self.seed - 1)
        rps = rps or self.rps
        match self.shape:
            case "bucket" | "small bucket":
                return Bucket(rps, rps * self.seconds, self.used)
            case "sliding log":
                return SlidingLog(rps, self.seconds, self.used)
            case "fixed window":
                return FixedWindow(rps, self.seconds, rng.random(), self.used)
            case "pool":
                return Pool(rps, rng)
        return Unlimited()

    def needed_seconds(self, quotas: Mapping[QuotaUnit, Quota]) -> float:
        """Returns the time that quotas, which have admitted nothing yet, need for the work in the long run."""
        return max(0.0, self.rows - quotas["requests"].free_requests()) / self.rps


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """Result of a case.

    Attributes:
        case: The case.
        rejected: Number of 429s.
        requests: Number of requests.
        time_ratio: Time over the time that the quota and the slots need.
        is_frugal: Whether there were few 429s.
        is_fast: Whether the time was short.
    """

    case: Case
    rejected: int
    requests: int
    time_ratio: float
    is_frugal: bool
    is_fast: bool


def run_clients(
    case: Case, quotas: Mapping[QuotaUnit, Quota], clients: Sequence[Client], seconds: float = 1e6
) -> None:
    """Simulates clients of a case until they have their answers, or for `seconds`."""

    def latency(rng: random.Random) -> float:
        return case.latency_seconds * rng.lognormvariate(-0.045, 0.3)

    simulation = Simulation(
        QuotaServer(quotas, ADVICE[case.advice], names_unit=case.names_unit),
        clients,
        latency,
        rejection_seconds=case.rejection_seconds,
        seed=case.seed,
    )
    simulation.run(seconds)


def run_case(case: Case, make_governor: Callable[[], Admission], machines: int = 1) -> CaseResult:
    """Simulates a case."""
    quotas = case.quotas()
    pool, work = quotas.get("requests"), case.requests()
    clients = [
        Client(
            make_governor(), iter(work[number::machines]), max(1, case.slots // machines), case.rows // machines
        )
        for number in range(machines)
    ]
    needed = case.needed_seconds(case.quotas())
    run_clients(case, quotas, clients)
    records = [record for client in clients for record in client.records]
    rejected = sum(not record.is_billed for record in records)
    took = max(record.received_at for record in records if record.is_billed)
    by_slots = case.rows * case.latency_seconds / case.slots
    if isinstance(pool, Pool):
        needed = took * min(1.0, case.rows / max(1.0, pool.capacity))
        most_rejected_share, most_time = POOL_REJECTED_SHARE, 1 / POOL_SHARE
    else:
        most_rejected_share, most_time = MOST_REJECTED_SHARE, MOST_TIME
    time_ratio = took / (max(needed, by_slots, 0.5) + 0.5)
    return CaseResult(
        case=case,
        rejected=rejected,
        requests=len(records),
        time_ratio=time_ratio,
        is_frugal=rejected <= max(most_rejected_share * len(records), MOST_REJECTED),
        is_fast=time_ratio <= most_time,
    )


def run_twice(
    case: Case, make_rate: Callable[[LearnedRateState | None], LearnedRate]
) -> tuple[CaseResult, CaseResult]:
    """Simulates a case, and a later run that begins with what the first one has learned.

    The quota is the same, but others have used another part of it.
    """
    first = make_rate(None)
    result = run_case(case, lambda: first)
    seed = case.seed + 100_000
    later = replace(case, seed=seed, used=max(0.0, random.Random(seed).uniform(-2.0, 1.0)))
    return result, run_case(later, lambda: make_rate(first.state.for_next_run()))
