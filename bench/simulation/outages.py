"""A server that rejects all requests for some time, as others use all of its quota, and then none."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate import LearnedRate
from bench.simulation.cases import Case, run_clients
from bench.simulation.servers import ADVICE, Quota
from bench.simulation.simulator import Client

SHAPES = ("bucket", "small bucket", "sliding log", "fixed window")
#: Begin of the outage and its duration, in seconds.
OUTAGES = ((0.0, 600.0), (0.0, 1800.0), (60.0, 600.0), (60.0, 1800.0))
RPS = (0.5, 2.0, 5.0)
#: Time in which the quota admits what is left at the end of the outage, in seconds.
LEFT_SECONDS = 200.0
#: Retry delay during the outage, of servers that send one: it says nothing of the outage's end.
RETRY_DELAY_SECONDS = 10.0


@dataclass(frozen=True)
class Outage:
    """A quota that admits nothing for some time.

    Attributes:
        quota: The quota.
        since: Begin of the outage, in seconds.
        until: End of the outage, in seconds.
    """

    quota: Quota
    since: float
    until: float

    def wait_seconds(self, now: float, amount: float = 1.0) -> float:
        """See `Quota`."""
        if self.since <= now < self.until:
            return min(RETRY_DELAY_SECONDS, self.until - now)
        return self.quota.wait_seconds(now, amount)

    def take(self, now: float, amount: float = 1.0) -> None:
        """See `Quota`."""
        self.quota.take(now, amount)

    def free_requests(self) -> float:
        """See `Quota`."""
        return 0.0


@dataclass(frozen=True, kw_only=True)
class OutageResult:
    """Result of a job during which the server rejected all requests for some time.

    Attributes:
        since: Begin of the outage, in seconds.
        seconds: Duration of the outage, in seconds.
        rps: Requests per second of the quota.
        time_ratio: Time after the outage over the time in which the quota admits what was left.
        rejected: Number of 429s.
    """

    since: float
    seconds: float
    rps: float
    time_ratio: float
    rejected: int


def cases() -> Iterator[tuple[Case, float, float]]:
    """Returns the cases, each with the begin and the duration of its outage, in seconds."""
    for (since, seconds), rps, shape, advice in itertools.product(OUTAGES, RPS, SHAPES, ADVICE):
        case = Case(
            shape=shape,
            rps=rps,
            seconds=1.0 if shape == "small bucket" else 20.0,
            advice=advice,
            latency_seconds=1.0,
            rejection_seconds=0.05,
            rows=int(rps * (since + LEFT_SECONDS)),
            slots=64,
            used=0.0,
            seed=1,
        )
        yield case, since, seconds


def simulate_outage(case: Case, since: float, seconds: float) -> OutageResult:
    """Simulates a job with an outage."""
    until = since + seconds
    client = Client(LearnedRate(), iter(case.requests()), case.slots, case.rows)
    run_clients(case, {"requests": Outage(case.quota(), since, until)}, [client])
    admitted = [record.received_at for record in client.records if record.is_billed]
    left = sum(at >= until for at in admitted)
    return OutageResult(
        since=since,
        seconds=seconds,
        rps=case.rps,
        time_ratio=(max(admitted) - until) * case.rps / left,
        rejected=len(client.records) - len(admitted),
    )


def outages_table(results: Sequence[OutageResult]) -> str:
    """Returns one line per outage and rate."""
    lines = [f"{'begin':>8}{'duration':>10}{'quota':>9}{'time: median':>14}{'most':>7}{'429s':>6}"]
    for (since, seconds), rps in itertools.product(OUTAGES, RPS):
        found = [it for it in results if (it.since, it.seconds, it.rps) == (since, seconds, rps)]
        ratios = [it.time_ratio for it in found]
        lines.append(
            f"{since:>6.0f} s{seconds:>8.0f} s{rps:>7.1f}/s{statistics.median(ratios):>14.2f}{max(ratios):>7.2f}"
            f"{statistics.median(it.rejected for it in found):>6.0f}"
        )
    return "\n".join(lines)
