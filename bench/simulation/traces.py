"""The rate that a server admits over time, on a bucket, a window and a pool, in a first and in a next run."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate import LearnedRate
from bench.simulation.cases import Case, run_clients
from bench.simulation.servers import Pool
from bench.simulation.simulator import Client, Request

#: Duration over which requests are counted, in seconds.
BIN_SECONDS = 2.0
RPS, ROWS = 10.0, 2000
CASES = (
    ("Bucket with a burst of 20 s, retry delay exact", "bucket", 20.0, "exact"),
    ("Fixed window of 20 s, no retry delay", "fixed window", 20.0, "none"),
    ("Shared pool whose capacity changes, always “2 s”", "pool", 0.0, "constant"),
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a job.

    Attributes:
        admitted: Admitted requests per second, in each `BIN_SECONDS`.
        rejected: Times of the 429s, in seconds.
        limits: Times and the rate of the quota from then on, in requests per second.
    """

    admitted: list[float]
    rejected: list[float]
    limits: list[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A first run and a next one with the same server; requests are counted in each `bin_seconds`."""

    title: str
    bin_seconds: float
    first: Run
    following: Run


def traces() -> list[Trace]:
    """Simulates the cases."""
    found = []
    for title, shape, seconds, advice in CASES:
        case = Case(
            shape=shape,
            rps=RPS,
            seconds=seconds,
            advice=advice,
            latency_seconds=1.0,
            rejection_seconds=0.05,
            rows=ROWS,
            slots=64,
            used=0.0,
            seed=5,
        )
        first = LearnedRate()
        run = _run(case, first)
        following = _run(case, LearnedRate(first.state.for_next_run()))
        found.append(Trace(title=title, bin_seconds=BIN_SECONDS, first=run, following=following))
    return found


def _run(case: Case, governor: LearnedRate) -> Run:
    quotas = case.quotas()
    quota = quotas["requests"]
    client = Client(governor, iter([Request()] * case.rows), case.slots, case.rows)
    run_clients(case, quotas, [client])
    admitted = [record.received_at for record in client.records if record.is_billed]
    bins = [0.0] * (1 + int(max(admitted) / BIN_SECONDS))
    for at in admitted:
        bins[int(at / BIN_SECONDS)] += 1 / BIN_SECONDS
    return Run(
        admitted=bins,
        rejected=[record.received_at for record in client.records if not record.is_billed],
        limits=quota.steps if isinstance(quota, Pool) else [(0.0, case.rps)],
    )
