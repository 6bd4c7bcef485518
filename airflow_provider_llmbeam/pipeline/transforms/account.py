"""Every row is accounted for: the sums behind the report."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from airflow_provider_llmbeam.engine.length_buckets import LengthBuckets
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow, FailedRow

#: Ratio of a latency class to the next: a percentile is at most 10 % high.
_LATENCY_RATIO = 1.1


@dataclass(slots=True)
class Tally:
    """Sums over rows. Requests and tokens count for this run only, and once for rows that share a request.

    Attributes:
        read: Rows that came in.
        answered: Rows by how they came by their answer.
        dead: Rows by kind of failure.
        words: One failure's own words per kind.
        sums: Requests, 429s, tokens.
        latencies: Answers by latency class.
        first_tokens: Streamed answers by latency class of their first token.
        buckets: Rows, input and output tokens by length bucket.
        first_sent_at: Unix time, or infinity.
        last_answered_at: Unix time, or minus infinity.
    """

    read: int = 0
    answered: Counter[str] = field(default_factory=Counter)
    dead: Counter[str] = field(default_factory=Counter)
    words: dict[str, str] = field(default_factory=dict)
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


def _class_of(seconds: float) -> int:
    return math.ceil(math.log(max(seconds, 1e-6), _LATENCY_RATIO))


class TallyRows(beam.DoFn):
    """Adds up the `AnsweredRow`s and `FailedRow`s of a bundle; only the `Tally` moves, no row has to.

    Args:
        boundaries: Of the length buckets, in input tokens.
    """

    def __init__(self, boundaries: tuple[int, ...]) -> None:
        super().__init__()
        self._buckets = LengthBuckets(boundaries, max_output_tokens=1)
        self.tally = Tally()

    def start_bundle(self) -> None:
        """Starts empty."""
        self.tally = Tally()

    def process(self, element: AnsweredRow | FailedRow) -> None:
        """Adds one row."""
        tally = self.tally
        if isinstance(element, AnsweredRow):
            tally.answered[element.origin] += 1
            if element.origin in ("fresh", "repaired"):
                self._add_answer(tally, element)
            return
        failure = element.failure
        tally.dead[failure.kind] += 1
        tally.words.setdefault(failure.kind, failure.message)
        if not element.is_duplicate:
            _add_cost(tally, failure.attempts, failure.rejections, failure.input_tokens, failure.output_tokens)

    def finish_bundle(self) -> Iterator[WindowedValue]:
        """Hands the sums on."""
        yield GlobalWindows.windowed_value(self.tally)

    def _add_answer(self, tally: Tally, element: AnsweredRow) -> None:
        completion = element.completion
        _add_cost(
            tally,
            completion.attempts,
            completion.rejections,
            completion.input_tokens,
            completion.output_tokens,
        )
        tally.sums["padded_tokens"] += max(completion.padded_tokens, completion.input_tokens)
        tally.sums["real_tokens"] += completion.input_tokens
        tally.sums["truncated"] += completion.finish_reason == "max_tokens"
        tally.latencies[_class_of(completion.latency_seconds)] += 1
        if completion.first_token_seconds is not None:
            tally.first_tokens[_class_of(completion.first_token_seconds)] += 1
        bucket = self._buckets.index(completion.input_tokens)
        tally.buckets[bucket, "rows"] += 1
        tally.buckets[bucket, "input_tokens"] += completion.input_tokens
        tally.buckets[bucket, "output_tokens"] += completion.output_tokens
        tally.first_sent_at = min(tally.first_sent_at, completion.sent_at)
        tally.last_answered_at = max(tally.last_answered_at, completion.answered_at)


def _add_cost(tally: Tally, attempts: int, rejections: int, input_tokens: int, output_tokens: int) -> None:
    tally.sums["requests"] += attempts + rejections
    tally.sums["rejections"] += rejections
    tally.sums["retries"] += max(0, attempts - 1)
    tally.sums["input_tokens"] += input_tokens
    tally.sums["output_tokens"] += output_tokens


class CountRows(beam.DoFn):
    """Counts the rows of a bundle as read, whatever becomes of them."""

    def start_bundle(self) -> None:
        """Starts at none."""
        self._rows = 0

    def process(self, _: object) -> None:
        """Counts one."""
        self._rows += 1

    def finish_bundle(self) -> Iterator[WindowedValue]:
        """Hands the count on."""
        yield GlobalWindows.windowed_value(Tally(read=self._rows))


def add_up(tallies: Iterable[Tally]) -> Tally:
    """Adds the tallies of all bundles up."""
    total = Tally()
    for tally in tallies:
        for name in ("answered", "dead", "sums", "latencies", "first_tokens", "buckets"):
            getattr(total, name).update(getattr(tally, name))
        total.read += tally.read
        total.words = {**tally.words, **total.words}
        total.first_sent_at = min(total.first_sent_at, tally.first_sent_at)
        total.last_answered_at = max(total.last_answered_at, tally.last_answered_at)
    return total
