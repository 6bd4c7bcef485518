"""Bounds that the governor keeps with many servers, and over hours: tables that are too long for a test."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llmbeam_sandbox.core.records import RequestRecord

from airflow_provider_llmbeam.engine.pacing.governor import Governor
from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate import LearnedRate
from bench.jobs import JOBS, Job
from bench.measure import per_second, request_figures
from bench.rows import Row
from bench.simulation.cases import Case, CaseResult, run_twice
from bench.simulation.simulator import SimulationResult, simulate, simulate_job
from bench.simulation.token_cases import TokenCase

RUNS = ("first run", "next run")
REQUESTS_PER_MINUTE = 600
#: The job of the benchmark whose quota steps down and up.
STEPPED = next(job for job in JOBS if job.letter == "H")


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A figure of a table, and where it may lie.

    Attributes:
        what: The figure.
        found: Its value.
        least: Least value.
        most: Greatest value.
    """

    what: str
    found: float
    least: float = -math.inf
    most: float = math.inf

    @property
    def is_kept(self) -> bool:
        """Whether the figure lies where it may."""
        return self.least <= self.found <= self.most


@dataclass(frozen=True, kw_only=True)
class Table:
    """Cases of a kind.

    Attributes:
        title: What they have in common.
        cases: The cases.
        simulate: Simulates one; a function of a module, so that another process can call it.
        bounds: Returns the figures of the results, in the order of the cases.
    """

    title: str
    cases: Sequence[Any]
    simulate: Callable[[Any], Any]
    bounds: Callable[[Sequence[Any]], Iterable[Bound]]


def learn_twice(case: Case) -> tuple[CaseResult, CaseResult]:
    """Simulates a first run with a server whose quota is not told, and the next one."""
    return run_twice(case, LearnedRate)


def pool_of_40_requests_per_second(seed: int) -> Case:
    """Returns the server of job J of the benchmark, with another capacity over time."""
    return Case(
        shape="pool",
        rps=40.0,
        seconds=0.0,
        advice="none",
        latency_seconds=0.2,
        rejection_seconds=0.003,
        rows=2400,
        slots=64,
        used=0.0,
        seed=seed,
    )


def learn_for_an_hour(machines: int) -> SimulationResult:
    """Simulates machines that do not communicate, and are not told the quota that they share."""
    return simulate(LearnedRate, machines=machines, requests_per_minute=REQUESTS_PER_MINUTE)


def share_for_an_hour(case: tuple[int, int, float]) -> SimulationResult:
    """Simulates machines that do not communicate, with a right or wrong number of expected ones."""
    machines, expected_workers, _ = case
    return simulate(
        lambda: Governor(requests_per_minute=REQUESTS_PER_MINUTE, expected_workers=expected_workers),
        machines=machines,
        requests_per_minute=REQUESTS_PER_MINUTE,
    )


def step(shares: tuple[float, ...], step_seconds: float, seed: int) -> tuple[Job, list[RequestRecord]]:
    """Simulates job H with other steps; returns the job and the requests that its server received."""
    assert STEPPED.server is not None
    rows = int(3000 / 60 * step_seconds * sum(shares))
    server = replace(STEPPED.server, step_shares=shares, step_seconds=step_seconds)
    job = replace(STEPPED, rows=rows, server=server)
    return job, simulate_job(job, seed=seed)


def step_down_and_up(seed: int) -> dict[str, float]:
    """Simulates the steps of job H, a little shorter or longer: the share at a step is a coincidence."""
    assert STEPPED.server is not None
    job, records = step(STEPPED.server.step_shares, 18.5 + 3 * seed / 8, seed)
    figures = request_figures(job, [Row(id=number, text=str(number)) for number in range(job.rows)], records)
    return figures | {"answered_ratio": figures["answered"] / job.rows}


def step_to_half(seconds: int) -> dict[str, float]:
    """Simulates a quota that falls to half, and is whole again after the same time."""
    _, records = step((1.0, 0.5, 1.0), seconds, seconds)
    admitted, rejected = per_second(records, rejected=False), per_second(records, rejected=True)
    down, up = seconds, 2 * seconds
    return {
        "rejected": sum(rejected[down : down + 8]),
        "used": sum(admitted[down + 3 : up]) / (25 * (up - down - 3)),
        "seconds": next(second for second, count in enumerate(admitted[up:]) if count >= 45),
    }


def _shares(results: Sequence[tuple[CaseResult, CaseResult]]) -> Iterator[tuple[str, float, float, float]]:
    """Yields the name of a run, the shares with few 429s and in time, and the longest time ratio."""
    for name, of_run in zip(RUNS, zip(*results, strict=True), strict=True):
        frugal = sum(result.is_frugal for result in of_run) / len(of_run)
        fast = sum(result.is_fast for result in of_run) / len(of_run)
        yield name, frugal, fast, max(result.time_ratio for result in of_run)


def _bounds_of_shapes(results: Sequence[tuple[CaseResult, CaseResult]]) -> Iterator[Bound]:
    """With 300 cases from seed 9,000: 86 and 92 %, next run 96 and 92 %; with these 77, 90, 98, 90 %."""
    for (name, frugal, fast, longest), least in zip(_shares(results), (0.77, 0.93), strict=True):
        yield Bound(what=f"few 429s, {name}", found=frugal, least=least)
        yield Bound(what=f"in time, {name}", found=fast, least=0.85)
        yield Bound(what=f"time ratio, {name}", found=longest, most=3)


def _bounds_of_tokens(results: Sequence[tuple[CaseResult, CaseResult]]) -> Iterator[Bound]:
    """With these 18 quotas: 78 and 78 %, next run 94 and 61 %, at most 3.2 times the time."""
    for name, frugal, fast, longest in _shares(results):
        yield Bound(what=f"few 429s, {name}", found=frugal, least=0.7)
        yield Bound(what=f"in time, {name}", found=fast, least=0.6)
        yield Bound(what=f"time ratio, {name}", found=longest, most=3.5)


def _bounds_of_pools(results: Sequence[tuple[CaseResult, CaseResult]]) -> Iterator[Bound]:
    """With 24 pools: 91 % of the capacity and 3.5 % 429s, next run 92 and 3.5 %."""
    for name, of_run in zip(RUNS, zip(*results, strict=True), strict=True):
        used = sum(1 / result.time_ratio for result in of_run) / len(of_run)
        rejected = sum(result.rejected / result.requests for result in of_run) / len(of_run)
        yield Bound(what=f"share of the capacity, {name}", found=used, least=0.85)
        yield Bound(what=f"429s per request, {name}", found=rejected, most=0.045)


def _bounds_of_learned_hours(results: Sequence[SimulationResult]) -> Iterator[Bound]:
    yield Bound(what="share of the quota", found=min(result.utilisation_ratio for result in results), least=0.95)
    yield Bound(what="429s per request", found=max(result.rejected_ratio for result in results), most=0.01)


#: Machines, expected ones, and most 429s per request. Measured: 0, 0.45 and 0.73 % with the right number, 0.13 %
#: four times too large, 2.25 % four times too small.
HOURS = ((1, 1, 0.002), (4, 4, 0.01), (16, 16, 0.01), (4, 16, 0.005), (16, 4, 0.03))


def _bounds_of_hours(results: Sequence[SimulationResult]) -> Iterator[Bound]:
    yield Bound(what="share of the quota", found=min(result.utilisation_ratio for result in results), least=0.99)
    yield Bound(what="Jain's index", found=min(result.jain for result in results), least=0.8)
    for (machines, expected, most), result in zip(HOURS, results, strict=False):
        what = f"429s per request, machines: {machines}, expected: {expected}"
        yield Bound(what=what, found=result.rejected_ratio, most=most)


def _bounds_of_steps(results: Sequence[dict[str, float]]) -> Iterator[Bound]:
    yield Bound(what="answered", found=min(found["answered_ratio"] for found in results), least=1, most=1)
    yield Bound(what="share of the quota", found=min(found["utilisation"] for found in results), least=0.94)
    yield Bound(what="429s per request", found=max(found["rejected_ratio"] for found in results), most=0.008)


def _bounds_of_halves(results: Sequence[dict[str, float]]) -> Iterator[Bound]:
    yield Bound(what="429s of the step down", found=max(found["rejected"] for found in results), most=10)
    yield Bound(what="share of the half", found=min(found["used"] for found in results), least=0.95)
    yield Bound(what="seconds of the step back", found=max(found["seconds"] for found in results), most=12)


TABLES = (
    Table(
        title="quotas of every shape that are not told",
        cases=[Case.draw(seed) for seed in range(9000, 9048)],
        simulate=learn_twice,
        bounds=_bounds_of_shapes,
    ),
    Table(
        title="quotas of tokens that are not told",
        cases=[case for case in map(TokenCase.draw, range(72)) if case.counted == "tokens"],
        simulate=learn_twice,
        bounds=_bounds_of_tokens,
    ),
    Table(
        title="a pool of 40 requests per second",
        cases=[pool_of_40_requests_per_second(seed) for seed in range(8)],
        simulate=learn_twice,
        bounds=_bounds_of_pools,
    ),
    Table(
        title="an hour of a quota that is not told, with 1, 2 and 4 machines",
        cases=(1, 2, 4),
        simulate=learn_for_an_hour,
        bounds=_bounds_of_learned_hours,
    ),
    Table(
        title="an hour of a known quota, with machines that do not communicate",
        cases=HOURS,
        simulate=share_for_an_hour,
        bounds=_bounds_of_hours,
    ),
    Table(
        title="a known quota that steps down and up",
        cases=range(8),
        simulate=step_down_and_up,
        bounds=_bounds_of_steps,
    ),
    Table(
        title="a known quota that falls to half for 18 to 21 seconds",
        cases=range(18, 22),
        simulate=step_to_half,
        bounds=_bounds_of_halves,
    ),
)


def lines_of(table: Table, bounds: Sequence[Bound]) -> str:
    """Returns the title of a table, and a line for each figure."""
    lines = [table.title]
    for bound in bounds:
        limit = f"at least {bound.least:g}" if bound.most == math.inf else f"at most {bound.most:g}"
        lines.append(f"  {bound.what:<52}{bound.found:>9.4g}  {limit}{'' if bound.is_kept else ', missed!'}")
    return "\n".join(lines)
