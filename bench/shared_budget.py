"""Simulates a backfill whose runs share a budget, with the ledger and the accounts of the package.

    python -m bench.shared_budget

730 runs, 16 at once, of 5,000 requests each: what they spend of a cap that pays for half of them, what killed
processes keep, and how often the ledger is written. Requests cost what a log-normal distribution says, and their
estimates are off by a factor of up to two. Time is simulated; nothing is sent.
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_llmbeam.engine.pacing.account import Account
from airflow_provider_llmbeam.engine.pacing.ledger import Ledger
from airflow_provider_llmbeam.spec.protocol.counts import NANO

RUNS, AT_ONCE, REQUESTS, IN_FLIGHT = 730, 16, 5_000, 64
#: Mean cost of a request, in US dollars, and mean time of one, in seconds.
MEAN_USD, SECONDS = 0.0004, 2.0


class File:
    """The file of the ledger in memory, with the times of its writes."""

    def __init__(self, usd: float, clock: Callable[[], float]) -> None:
        self.ledger = Ledger(usd=usd)
        self.writes: Counter[int] = Counter()
        self._clock = clock

    def change(self, changed: Callable[[Ledger], Ledger]) -> Ledger:
        """Changes the ledger."""
        before, self.ledger = self.ledger, changed(self.ledger)
        self.writes[int(self._clock())] += self.ledger != before
        return self.ledger


@dataclass
class Totals:
    """What all runs have done.

    Attributes:
        spent: Cost of the answers, in billionths of a US dollar.
        above: What answers cost above their estimate.
        answered: Number of answers.
        stopped: Number of runs that the budget has stopped.
        killed: Number of processes that were killed.
    """

    spent: int = 0
    above: int = 0
    answered: int = 0
    stopped: int = 0
    killed: int = 0


def simulate(usd: float, kill_ratio: float, interval_seconds: float, seed: int = 0) -> tuple[Totals, File]:
    """Runs the backfill.

    Args:
        usd: The cap, in US dollars.
        kill_ratio: Share of the tries that are killed somewhere on their way; a retry sends the rest.
        interval_seconds: Least time between two writes of a process.
        seed: Seed of costs and kills.
    """
    random_, totals = random.Random(seed), Totals()
    now = 0.0
    file = File(usd, lambda: now)
    events: list[tuple[float, int, Run]] = []
    waiting = iter(range(RUNS))
    order = iter(range(10**12))

    class Run:
        """One run: up to `IN_FLIGHT` requests at once, and a retry after a kill."""

        def __init__(self) -> None:
            self.left, self.tries = REQUESTS, 0
            self.begin()

        def begin(self) -> None:
            self.tries += 1
            self.flying: list[tuple[int, int]] = []
            self.killed_at = random_.randrange(REQUESTS) if random_.random() < kill_ratio else -1
            self.account = Account(
                file.change,
                usd,
                over="backfill",
                name=str(next(order)),
                interval_seconds=interval_seconds,
                first_requests=IN_FLIGHT,
                clock=lambda: now,
                in_background=lambda called: called(),
            )

        def step(self) -> bool:
            """Ends what is in flight, and sends the next requests; returns whether the run goes on."""
            for expected, cost in self.flying:
                self.account.add(cost)
                self.account.release(expected)
                totals.spent += cost
                totals.above += max(0, cost - expected)
                totals.answered += 1
                self.left -= 1
            self.flying = []
            if 0 <= self.killed_at < REQUESTS - self.left and self.left:
                totals.killed += 1
                self.begin()
                return True
            while len(self.flying) < min(IN_FLIGHT, self.left):
                cost = round(random_.lognormvariate(0, 0.7) / 1.28 * MEAN_USD * NANO)
                expected = round(cost * random_.uniform(0.5, 2))
                if self.account.admit(expected) > 0:
                    break
                self.flying.append((expected, cost))
            if self.flying or not (self.account.is_spent or not self.left):
                return True
            totals.stopped += self.left > 0
            self.account.close(is_end=True)
            return False

    for _ in range(AT_ONCE):
        if next(waiting, None) is not None:
            heapq.heappush(events, (random_.random(), next(order), Run()))
    while events:
        now, _, run = heapq.heappop(events)
        if run.step():
            heapq.heappush(events, (now + random_.uniform(0.5, 1.5) * SECONDS, next(order), run))
        elif next(waiting, None) is not None:
            heapq.heappush(events, (now, next(order), Run()))
    return totals, file


def main() -> None:
    """Prints a table of the ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    whole = RUNS * REQUESTS * MEAN_USD
    _print(f"{RUNS} runs, {AT_ONCE} at once, {REQUESTS:,} requests each; about ${whole:,.0f} for all of them")
    _print(
        "cap      kills  ledger   spent     spent/cap  above the estimate  kept by killed  stopped  most writes/s"
    )
    for usd in (whole / 2, 2 * whole):
        for kill_ratio in (0.0, 0.2):
            for place, interval in (("disk", 0.0), ("object", 10.0)):
                totals, file = simulate(usd, kill_ratio, interval)
                kept = file.ledger.taken_nano_usd - totals.spent
                assert totals.spent <= usd * NANO + totals.above
                _print(
                    f"${usd:<7,.0f} {totals.killed:>5}  {place:<7} ${totals.spent / NANO:<8,.2f} "
                    f"{totals.spent / NANO / usd:>9.4f}  ${totals.above / NANO:>17,.2f}  ${kept / NANO:>13,.2f}  "
                    f"{totals.stopped:>7}  {max(file.writes.values()):>13}"
                )


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
