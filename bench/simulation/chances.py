"""Servers that reject a share of all requests by chance, at any rate, alone or on top of a quota."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate import LearnedRate
from bench.simulation.servers import ADVICE, Bucket, QuotaServer, Rejection
from bench.simulation.simulator import Client, Request, Simulation

SHARES = (0.01, 0.05, 0.1, 0.2)
#: Retry delay of a rejection by chance, in seconds.
ADVISED_SECONDS = 1.0
#: Requests per second of the quota, or `None`.
QUOTAS = (None, 100.0)
IN_FLIGHT, LATENCY_SECONDS = 64, 0.05
#: Time until a 429 arrives: at once, or like an answer.
REJECTION_SECONDS = (0.002, 0.05)
#: Duration, and the part of it in which the server is learned.
SECONDS, WARM_UP_SECONDS = 240.0, 120.0


@dataclass(frozen=True, kw_only=True)
class ChanceCase:
    """A server.

    Attributes:
        share: Share of the requests that are rejected by chance.
        is_advised: Whether these rejections have a retry delay.
        rps: Requests per second of its quota, which counts what is not rejected by chance; `None` for none.
        rejection_seconds: Time until a 429 arrives.
        seed: Seed of all random numbers.
    """

    share: float
    is_advised: bool
    rps: float | None
    rejection_seconds: float
    seed: int = 0

    @property
    def possible_rps(self) -> float:
        """Answers per second of a client whose requests wait as they are told, each for itself."""
        waits = self.share * (ADVISED_SECONDS if self.is_advised else 0.0)
        by_slots = IN_FLIGHT * (1 - self.share) / (LATENCY_SECONDS + waits)
        return by_slots if self.rps is None else min(by_slots, self.rps)


@dataclass(frozen=True, kw_only=True)
class ChanceResult:
    """Result of a case.

    Attributes:
        case: The case.
        ratio: Answers after the warm-up over the possible ones.
        rejected: Share of 429s after the warm-up.
        found_seconds: Time until half of the possible rate was reached for a second.
    """

    case: ChanceCase
    ratio: float
    rejected: float
    found_seconds: float


class ChanceServer:
    """Rejects requests by chance, and passes the others on to a server."""

    def __init__(self, case: ChanceCase) -> None:
        self._case, self._rng = case, random.Random(case.seed + 1)
        quotas = {} if case.rps is None else {"requests": Bucket(case.rps, 2 * case.rps)}
        self._server = QuotaServer(quotas, ADVICE["exact"]) if quotas else None  # type: ignore[arg-type]

    def admit(self, now: float, tokens: int) -> Rejection | None:
        """See `Server`."""
        if self._rng.random() < self._case.share:
            return Rejection(ADVISED_SECONDS if self._case.is_advised else None)
        return self._server.admit(now, tokens) if self._server else None

    def charge_output(self, now: float, tokens: int) -> None:
        """See `Server`."""


def cases(seeds: Sequence[int] = (0,)) -> list[ChanceCase]:
    """Returns the cases."""
    return [
        ChanceCase(share=share, is_advised=advised, rps=rps, rejection_seconds=took, seed=seed)
        for advised, rps, share, took, seed in itertools.product(
            (True, False), QUOTAS, SHARES, REJECTION_SECONDS, seeds
        )
    ]


def simulate_chance(
    case: ChanceCase, rate: LearnedRate | None = None, seconds: float = SECONDS, warm_up: float = WARM_UP_SECONDS
) -> ChanceResult:
    """Simulates a case for some seconds, of which the first are the warm-up."""
    client = Client(rate or LearnedRate(), itertools.repeat(Request()), IN_FLIGHT, 4000)

    def latency(rng: random.Random) -> float:
        return LATENCY_SECONDS * rng.lognormvariate(-0.045, 0.3)

    simulation = Simulation(
        ChanceServer(case), [client], latency, rejection_seconds=case.rejection_seconds, seed=case.seed
    )
    simulation.run(seconds)
    later = [r.is_billed for r in client.records if r.received_at >= warm_up]
    answered = [r.received_at for r in client.records if r.is_billed]
    enough = max(1, round(case.possible_rps / 2))
    found = (end for start, end in zip(answered, answered[enough:], strict=False) if end - start < 1)
    return ChanceResult(
        case=case,
        ratio=sum(later) / (seconds - warm_up) / case.possible_rps,
        rejected=1 - sum(later) / max(1, len(later)),
        found_seconds=next(found, seconds),
    )


def job_ratio(case: ChanceCase, rows: int = 4000) -> float:
    """Returns the time of a job over that of the possible rate, and of the last retry delay."""
    client = Client(LearnedRate(), itertools.repeat(Request(), rows), IN_FLIGHT, rows)
    simulation = Simulation(
        ChanceServer(case),
        [client],
        lambda rng: LATENCY_SECONDS,
        rejection_seconds=case.rejection_seconds,
        seed=case.seed,
    )
    simulation.run(1e4)
    seconds = max(record.answered_at or 0.0 for record in client.records)
    return seconds / (rows / case.possible_rps + ADVISED_SECONDS)


def chances_table(results: Sequence[ChanceResult]) -> str:
    """Returns a table of the results."""
    lines = [
        f"{'by chance':>9}{'advice':>8}{'quota':>8}{'429 after':>11}"
        f"{'of possible':>13}{'429s':>7}{'found after':>13}"
    ]
    lines += [
        f"{r.case.share:>9.0%}{'1 s' if r.case.is_advised else 'none':>8}"
        f"{'none' if r.case.rps is None else f'{r.case.rps:.0f}/s':>8}{1000 * r.case.rejection_seconds:>8.0f} ms"
        f"{r.ratio:>13.0%}{r.rejected:>7.1%}{r.found_seconds:>11.1f} s"
        for r in results
    ]
    return "\n".join(lines)
