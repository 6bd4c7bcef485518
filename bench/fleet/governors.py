"""Machines that share a quota and do not communicate, each with the real governor."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

from airflow_provider_llmbeam.engine.pacing.governor import Governor
from airflow_provider_llmbeam.engine.pacing.rejection import Rejection
from bench.fleet.case import FleetCase
from bench.simulation.servers import Bucket
from bench.simulation.simulator import REJECTION_SECONDS

#: Requests are simulated in steps of this time, which is shorter than `Governor.REQUEST_CREDIT_SECONDS`.
STEP_SECONDS = 0.02
#: Each simulated request stands for so many. The periods of the governor are then the same: at 50 machines and
#: 200,000 requests per minute a probe period is at its shortest, as at 1,000,000. With `expected_workers` 12 the
#: 429s of 20 s were 7.3 % of the requests, and 7.2 % at the full rate.
REQUESTS_PER_REQUEST = 5
#: Time of which the rate is one value, in seconds.
BIN_SECONDS = 10.0
#: Requests that the server's bucket holds, in seconds of its rate.
BURST_SECONDS = 2.0
#: The steady state begins here, in seconds.
STEADY_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """What the machines have got of a quota.

    Attributes:
        expected_workers: `limits.expected_workers`.
        admitted: Share of the quota that was admitted, in each `BIN_SECONDS`.
        rejected: Share of the requests that were rejected, in each of them.
        steady_jain: Jain's fairness index of the machines from `STEADY_SECONDS` on.
    """

    expected_workers: int
    admitted: tuple[float, ...]
    rejected: tuple[float, ...]
    steady_jain: float

    @property
    def first_minute(self) -> float:
        """Share of the quota in the first minute."""
        return _mean(self.admitted[: round(60 / BIN_SECONDS)])

    @property
    def first_minute_rejected(self) -> float:
        """Share of 429s in the first minute."""
        return self._rejected_ratio(slice(0, round(60 / BIN_SECONDS)))

    @property
    def steady(self) -> float:
        """Share of the quota in the steady state."""
        return _mean(self.admitted[round(STEADY_SECONDS / BIN_SECONDS) :])

    @property
    def steady_rejected(self) -> float:
        """Share of 429s in the steady state."""
        return self._rejected_ratio(slice(round(STEADY_SECONDS / BIN_SECONDS), None))

    def _rejected_ratio(self, bins: slice) -> float:
        admitted, ratios = self.admitted[bins], self.rejected[bins]
        requests = [share / (1 - ratio) for share, ratio in zip(admitted, ratios, strict=True)]
        return 1 - sum(admitted) / sum(requests) if admitted else 0.0

    def seconds_for(self, quota_seconds: float) -> float:
        """Returns the time in which the machines get what the whole quota would be in `quota_seconds`."""
        got = 0.0
        for number, share in enumerate(self.admitted):
            if got + share * BIN_SECONDS >= quota_seconds:
                return number * BIN_SECONDS + (quota_seconds - got) / share
            got += share * BIN_SECONDS
        return len(self.admitted) * BIN_SECONDS + (quota_seconds - got) / self.steady


def share_quota(case: FleetCase, expected_workers: int, seconds: float = 600.0, seed: int = 0) -> Sharing:
    """Simulates machines that always have rows to send.

    Args:
        case: The job.
        expected_workers: `limits.expected_workers` of all machines.
        seconds: Simulated time.
        seed: Seed of all random numbers.
    """
    rng = random.Random(seed)
    rpm = case.requests_per_minute / REQUESTS_PER_REQUEST
    governors = [Governor(requests_per_minute=rpm, expected_workers=expected_workers) for _ in range(case.workers)]
    bucket = Bucket(rpm / 60, rpm / 60 * BURST_SECONDS, used=1.0)
    rejections: deque[tuple[float, Governor, float]] = deque()
    steady = dict.fromkeys(range(case.workers), 0)
    order = list(range(case.workers))
    admitted = [0] * round(seconds / BIN_SECONDS)
    rejected = admitted[:]
    for step in range(round(seconds / STEP_SECONDS)):
        now = step * STEP_SECONDS
        place = int(now / BIN_SECONDS)
        rng.shuffle(order)
        while rejections and rejections[0][0] <= now:
            _, governor, advice = rejections.popleft()
            governor.rejected(now, Rejection(advice, chance=rng.random()))
        for machine in order:
            governor = governors[machine]
            while governor.admit(now, 1.0) == 0:
                if (wait := bucket.wait_seconds(now)) > 0:
                    rejected[place] += 1
                    rejections.append((now + REJECTION_SECONDS, governor, wait))
                    continue
                bucket.take(now)
                governor.settle(1.0, 1.0, is_answered=True)
                admitted[place] += 1
                steady[machine] += now >= STEADY_SECONDS
    total, squares = sum(steady.values()), sum(count * count for count in steady.values())
    return Sharing(
        expected_workers=expected_workers,
        admitted=tuple(count / (rpm / 60 * BIN_SECONDS) for count in admitted),
        rejected=tuple(lost / max(1, lost + got) for lost, got in zip(rejected, admitted, strict=True)),
        steady_jain=total * total / (case.workers * squares) if squares else 0.0,
    )


def _mean(values: tuple[float, ...]) -> float:
    return sum(values) / max(1, len(values))
