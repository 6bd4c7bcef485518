"""What a trial of stream workers shows: what a reader, the model server and the journal saw. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

#: What must be nought in a `Verdict`.
_FAULTS = (
    "missing",
    "repeated",
    "disordered",
    "paid_though_recorded",
    "paid_though_answered",
    "paid_without_cause",
    "undrained",
)
#: Time in which a record of an answer is with the broker, on a machine with much to do, in seconds.
RECORD_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """An answer as a reader with `read_committed` got it.

    Attributes:
        at: Unix time at which it was visible.
        number: Number of its message.
        key: Key of its record.
        partition: Partition of its record.
    """

    at: float
    number: int
    key: str
    partition: int


@dataclass(frozen=True, slots=True)
class Sent:
    """A request as the model server got it.

    Attributes:
        at: Unix time at which it came.
        answered_at: Unix time of its answer; `None` without one.
        prompt: Number of the prompt: an upgrade changes it.
    """

    at: float
    answered_at: float | None = None
    prompt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known after a trial.

    Attributes:
        keys: Key of each message, by its number; those of one key are in order.
        seen: What a reader got, in its order.
        requests: Requests of each message, in order.
        journaled: Time at which the broker took the journal's record of each message.
        disturbances: Times at which a worker or the broker was killed, or members came and went.
        kills: Those of the disturbances at which a worker was killed.
        outages: Begin and end of the times in which the broker was down, or members were not back yet: no record
            could be written.
        undrained: What workers say that did not end in order after SIGTERM.
    """

    keys: Mapping[int, str]
    seen: Sequence[Seen]
    requests: Mapping[int, Sequence[Sent]]
    journaled: Mapping[int, float]
    disturbances: Sequence[float]
    kills: Sequence[float]
    outages: Sequence[tuple[float, float]] = ()
    undrained: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was wrong, which must be nought, and what was measured.

    Attributes:
        messages: Number of messages.
        missing: Messages without an answer.
        repeated: Answers beyond the first of a message.
        disordered: Answers after one of a later message of their key.
        paid_by_both: Requests with another prompt than the one before.
        paid_twice: Other requests beyond the first of a message.
        paid_though_recorded: Those that were sent although the broker had the journal's record.
        paid_though_answered: Those whose answer had come long before the next disturbance, so that it should have
            had a record.
        paid_without_cause: Those without a disturbance since the request before.
        undrained: Workers that did not end in order after SIGTERM.
        unrecorded: Messages that were sent and of which the broker had no record, at all kills together.
        recoveries: Seconds from each kill until all partitions had another answer.
    """

    messages: int
    missing: int
    repeated: int
    disordered: int
    paid_by_both: int
    paid_twice: int
    paid_though_recorded: int
    paid_though_answered: int
    paid_without_cause: int
    undrained: int
    unrecorded: int
    recoveries: tuple[float, ...]

    @property
    def faults(self) -> dict[str, int]:
        """What is wrong, by name; empty if nothing is."""
        found = {name: int(getattr(self, name)) for name in _FAULTS}
        return {name: count for name, count in found.items() if count}


def judge(evidence: Evidence) -> Verdict:
    """Judges a trial."""
    times = Counter(each.number for each in evidence.seen)
    last: dict[str, int] = {}
    disordered = 0
    for each in evidence.seen:
        disordered += each.number < last.get(each.key, -1)
        last[each.key] = max(each.number, last.get(each.key, -1))
    disturbances = sorted(evidence.disturbances)
    paid_by_both = paid_twice = paid_though_recorded = paid_though_answered = paid_without_cause = 0
    for number, sent in evidence.requests.items():
        for before, again in pairwise(sent):
            if before.prompt != again.prompt:
                paid_by_both += 1
                continue
            paid_twice += 1
            paid_though_recorded += evidence.journaled.get(number, again.at) < again.at
            if any(begin < again.at and before.at < end for begin, end in evidence.outages):
                continue
            following = disturbances[bisect_left(disturbances, before.at) :][:1]
            paid_without_cause += following == [] or following[0] > again.at
            paid_though_answered += any((before.answered_at or at) + RECORD_SECONDS < at for at in following)
    return Verdict(
        messages=len(evidence.keys),
        missing=sum(number not in times for number in evidence.keys),
        repeated=sum(times.values()) - len(times),
        disordered=disordered,
        paid_by_both=paid_by_both,
        paid_twice=paid_twice,
        paid_though_recorded=paid_though_recorded,
        paid_though_answered=paid_though_answered,
        paid_without_cause=paid_without_cause,
        undrained=len(evidence.undrained),
        unrecorded=sum(_unrecorded_at(evidence, kill) for kill in evidence.kills),
        recoveries=tuple(_recoveries(evidence)),
    )


def _unrecorded_at(evidence: Evidence, kill: float) -> int:
    # Of a message that was sent again later, too, the first record counts.
    recorded = evidence.journaled
    return sum(sent[0].at < kill <= recorded.get(number, kill) for number, sent in evidence.requests.items())


def _recoveries(evidence: Evidence) -> list[float]:
    by_partition = defaultdict(list)
    for each in evidence.seen:
        by_partition[each.partition].append(each.at)
    found = []
    for kill in evidence.kills:
        nexts = [times[bisect_left(times, kill) :][:1] for times in by_partition.values()]
        if all(nexts):
            found.append(max(at - kill for (at,) in nexts))
    return found
