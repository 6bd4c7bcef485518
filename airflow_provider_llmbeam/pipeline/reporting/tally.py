"""Sums over the rows of a job, from which the report is built."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

#: Ratio of the upper bounds of two adjacent latency classes: a percentile is at most 10 % too high.
_LATENCY_RATIO = 1.1


@dataclass(slots=True)
class Tally:
    """Sums over rows. Requests and tokens count for this run only, and once for rows that share a request.

    Attributes:
        read: Rows that came in.
        answered: Rows by how they came by their answer.
        failed: Rows by kind of failure.
        messages: The message of one failure per kind.
        sums: Requests, 429s, tokens.
        latencies: Answers by latency class.
        first_tokens: Streamed answers by latency class of their first token.
        buckets: Rows, input and output tokens by length bucket.
        first_sent_at: Unix time, or infinity.
        last_answered_at: Unix time, or minus infinity.
    """

    read: int = 0
    answered: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    messages: dict[str, str] = field(default_factory=dict)
    sums: Counter[str] = field(default_factory=Counter)
    latencies: Counter[int] = field(default_factory=Counter)
    first_tokens: Counter[int] = field(default_factory=Counter)
    buckets: Counter[tuple[int, str]] = field(default_factory=Counter)
    first_sent_at: float = math.inf
    last_answered_at: float = -math.inf


def percentile_seconds(classes: Counter[int], share: float) -> float | None:
    """The time that this share of the answers did not exceed; `None` without answers."""
    left = share * classes.total()
    for latency_class in sorted(classes):
        left -= classes[latency_class]
        if left <= 0:
            return round(float(_LATENCY_RATIO**latency_class), 4)
    return None


def latency_class(seconds: float) -> int:
    """Returns the latency class of a duration."""
    return math.ceil(math.log(max(seconds, 1e-6), _LATENCY_RATIO))


def add_up(tallies: Iterable[Tally]) -> Tally:
    """Adds the tallies of all bundles up."""
    total = Tally()
    for tally in tallies:
        for name in ("answered", "failed", "sums", "latencies", "first_tokens", "buckets"):
            getattr(total, name).update(getattr(tally, name))
        total.read += tally.read
        total.messages = {**tally.messages, **total.messages}
        total.first_sent_at = min(total.first_sent_at, tally.first_sent_at)
        total.last_answered_at = max(total.last_answered_at, tally.last_answered_at)
    return total
