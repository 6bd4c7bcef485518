"""A group that grows, shrinks, is killed and upgraded: its share of a quota, and rows per second by its size."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from kafka_broker import Broker
from llmbeam_sandbox import Latency

from bench.stream.plan import group_steps
from bench.stream.trial import ANSWERS, Setting, Trial, read_committed
from bench.stream.verdict import Verdict, judge

#: Messages per second, and the quota, which leaves a fourth to catch up.
RATE, REQUESTS_PER_MINUTE = 60.0, 4500
PARTITIONS = 12
#: The members of a measurement of rows per second, each with this many requests in flight, of 200 ms.
MOST_MEMBERS, IN_FLIGHT = 6, 4
_SETTLE_SECONDS, _COUNT_SECONDS = 5.0, 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """What a group has done.

    Attributes:
        verdict: What was wrong, and what was measured.
        versions: Number of records of each version of the job.
        seconds: Duration, in seconds.
        requests: Number of requests, 429s included.
        rejected: Number of 429s.
        most_in_a_minute: Most requests within 60 seconds, over the quota.
    """

    verdict: Verdict
    versions: dict[str, int]
    seconds: float
    requests: int
    rejected: int
    most_in_a_minute: float


def watch_group(seed: int, kills: int, broker: Broker, directory: Path) -> Group:
    """Kills members of a group of two to six, upgrades it in the middle, and judges it."""
    setting = Setting(
        seed=seed, partitions=PARTITIONS, rate=RATE, requests_per_minute=REQUESTS_PER_MINUTE, own_machines=True
    )
    begun = time.monotonic()
    with Trial(setting, broker, directory) as trial:
        evidence = trial.run(group_steps(seed, kills))
        records = [each for _, each in read_committed(broker.servers, ANSWERS, Event(), ends=True)]
        asked = trial.asked()
    return Group(
        verdict=judge(evidence),
        versions=dict(Counter(dict(record.headers())["llmbeam-job"].decode() for record in records)),
        seconds=time.monotonic() - begun,
        requests=len(asked),
        rejected=sum(is_rejected for _, is_rejected in asked),
        most_in_a_minute=most_within([at for at, _ in asked], 60.0) / REQUESTS_PER_MINUTE,
    )


def most_within(times: Sequence[float], seconds: float) -> int:
    """Returns how many sorted times at most are within an interval."""
    return max((bisect_left(times, at + seconds) - number for number, at in enumerate(times)), default=0)


def rows_by_members(broker: Broker, directory: Path) -> dict[int, float]:
    """Returns the answers per second of groups of one to six members, which always have messages."""
    setting = Setting(
        partitions=PARTITIONS,
        keys=400,
        rate=1.5 * MOST_MEMBERS * IN_FLIGHT / 0.2,
        latency=Latency(mean_seconds=0.2),
        job={"limits": {"max_in_flight": IN_FLIGHT}},
    )
    found = {}
    with Trial(setting, broker, directory) as trial:
        for member in range(MOST_MEMBERS):
            trial.start(member)
            # A member that is behind answers a whole fetch of one partition before the next one.
            trial.await_assignment(PARTITIONS // (member + 1))
            time.sleep(_SETTLE_SECONDS)
            before = len(trial.seen)
            time.sleep(_COUNT_SECONDS)
            found[member + 1] = (len(trial.seen) - before) / _COUNT_SECONDS
    return found
