"""A time series of a run that never has more than 300 intervals, however long the run is. Pure.

An interval lasts a power of two of seconds, and begins at a multiple of it since 1970. Where 300 intervals do not
reach, pairs of them become one. The intervals of two workers then fit into each other, and as all values are whole
numbers, merging is associative and commutative.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields

from airflow_provider_llmbeam.engine.outcome import Completion, Failure
from airflow_provider_llmbeam.pipeline.reporting.report import Series
from airflow_provider_llmbeam.spec.protocol.counts import NANO

#: Largest number of intervals between the first event and the last one.
MAX_INTERVALS = 300
#: Ratio of the upper bounds of two adjacent latency classes: a percentile is at most 10 % too high.
LATENCY_RATIO = 1.1
_LOG_RATIO = math.log(LATENCY_RATIO)


@dataclass(slots=True)
class Interval:
    """Events of one interval.

    The number of requests in flight is not an event; it follows from when they were sent and answered. The sums of
    these times make it exact within the interval, too, also when two intervals become one.

    Attributes:
        answers: Number of answers received.
        batch_answers: Number of answers of batch inference whose results were read.
        failed: Number of prompts that failed.
        rejections: Number of 429s received.
        input_tokens: Billed input tokens of these answers and failures, without batch inference.
        output_tokens: Billed output tokens of them.
        cost_nano_usd: Cost of all of them, in billionths of a US dollar.
        sent: Number of requests sent whose answers were received.
        sent_ms: Sum of their times, in milliseconds since 1970.
        answered_ms: Sum of the times of the answers, in the same way.
        held: Number of these requests that began to wait for the governor.
        held_ms: Sum of these times.
        released: Number of these requests that were sent after such a wait.
        released_ms: Sum of these times.
        latencies: Number of answers by latency class.
    """

    answers: int = 0
    batch_answers: int = 0
    failed: int = 0
    rejections: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_nano_usd: int = 0
    sent: int = 0
    sent_ms: int = 0
    answered_ms: int = 0
    held: int = 0
    held_ms: int = 0
    released: int = 0
    released_ms: int = 0
    latencies: Counter[int] = field(default_factory=Counter)

    def add(self, other: Interval) -> None:
        """Adds the events of another interval."""
        for name in _NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.latencies.update(other.latencies)


_NUMBERS = tuple(each.name for each in fields(Interval) if each.name != "latencies")


@dataclass(slots=True)
class TimeSeries:
    """Events of a run by time.

    Attributes:
        exponent: Length of an interval, as the power of two of its seconds.
        intervals: The intervals with events, by their number since 1970.
    """

    exponent: int = 0
    intervals: dict[int, Interval] = field(default_factory=dict)

    def add_answer(self, completion: Completion, latency_class: int) -> None:
        """Adds an answer to a request of this run."""
        ended = completion.answered_at
        sent = ended - completion.latency_seconds
        interval = self.intervals.get(int(ended) >> self.exponent) or self._new(ended)
        interval.answers += 1
        interval.input_tokens += completion.tokens.input
        interval.output_tokens += completion.tokens.output
        interval.cost_nano_usd += completion.cost_nano_usd or 0
        interval.latencies[latency_class] += 1
        interval.answered_ms += int(ended * 1000)
        first = self.intervals.get(int(sent) >> self.exponent) or self._new(sent)
        first.sent += 1
        first.sent_ms += int(sent * 1000)
        if completion.held_seconds:
            self._add_held(sent, completion.held_seconds)
        if completion.rejections:
            self._add_rejections(completion, completion.sent_at)

    def add_batch_answer(self, completion: Completion) -> None:
        """Adds an answer of batch inference: all of them arrive within a moment, which no rate describes."""
        interval = self._at(completion.answered_at)
        interval.batch_answers += 1
        interval.cost_nano_usd += completion.cost_nano_usd or 0

    def add_failure(self, failure: Failure) -> None:
        """Adds the failure of a prompt; one without a time was not sent."""
        at = failure.failed_at or failure.answered_at
        if not at:
            return
        interval = self._at(at)
        interval.failed += 1
        interval.input_tokens += failure.tokens.input
        interval.output_tokens += failure.tokens.output
        interval.cost_nano_usd += failure.cost_nano_usd or 0
        self._add_rejections(failure, at)

    def merge(self, other: TimeSeries) -> None:
        """Adds the events of another series, which is not changed."""
        self._widen(other.exponent)
        for number, interval in other.intervals.items():
            self._at(number << other.exponent).add(interval)

    @property
    def numbers(self) -> range:
        """Numbers of all intervals from the first event to the last one."""
        return range(min(self.intervals), max(self.intervals) + 1) if self.intervals else range(0)

    def dense(self) -> Iterator[Interval]:
        """Yields all intervals from the first event to the last one."""
        for number in self.numbers:
            yield self.intervals.get(number) or Interval()

    def _add_held(self, sent: float, seconds: float) -> None:
        """Adds a wait as if it had been one, before the request that was answered."""
        begin, end = self._at(sent - seconds), self._at(sent)
        begin = self._at(sent - seconds)  # the second one may have widened the intervals
        begin.held += 1
        begin.held_ms += int((sent - seconds) * 1000)
        end.released += 1
        end.released_ms += int(sent * 1000)

    def _add_rejections(self, outcome: Completion | Failure, otherwise_at: float) -> None:
        for at in outcome.rejected_at:
            self._at(at).rejections += 1
        if missing := outcome.rejections - len(outcome.rejected_at):  # the journal does not keep their times
            self._at(otherwise_at).rejections += missing

    def _at(self, time: float) -> Interval:
        return self.intervals.get(int(time) >> self.exponent) or self._new(time)

    def _new(self, time: float) -> Interval:
        """Returns a new interval, or an old one of longer intervals."""
        numbers = [*self.intervals, int(time) >> self.exponent]
        first, last, exponent = min(numbers), max(numbers), self.exponent
        while (last >> (exponent - self.exponent)) - (first >> (exponent - self.exponent)) >= MAX_INTERVALS:
            exponent += 1
        self._widen(exponent)
        return self.intervals.setdefault(int(time) >> self.exponent, Interval())

    def _widen(self, exponent: int) -> None:
        shift = exponent - self.exponent
        if shift <= 0:
            return
        narrow, self.intervals, self.exponent = self.intervals, {}, exponent
        for number, interval in narrow.items():
            if (known := self.intervals.get(number >> shift)) is None:
                self.intervals[number >> shift] = interval
            else:
                known.add(interval)


def series_of(series: TimeSeries) -> Series | None:
    """Returns the time series; `None` for a run without events."""
    if not series.intervals:
        return None
    seconds, dense = 2**series.exponent, list(series.dense())
    start = series.numbers.start * seconds
    in_flight = _levels(
        start, seconds, [(each.sent, each.sent_ms, each.answers, each.answered_ms) for each in dense]
    )
    held = _levels(start, seconds, [(each.held, each.held_ms, each.released, each.released_ms) for each in dense])
    return Series(
        started_at=start,
        interval_seconds=seconds,
        answers=[each.answers for each in dense],
        batch_answers=[each.batch_answers for each in dense],
        failed=[each.failed for each in dense],
        rejections=[each.rejections for each in dense],
        in_flight=in_flight,
        held=held,
        latency_p50=[percentile_seconds(each.latencies, 0.5) for each in dense],
        latency_p95=[percentile_seconds(each.latencies, 0.95) for each in dense],
        input_tokens=[each.input_tokens for each in dense],
        output_tokens=[each.output_tokens for each in dense],
        cost_usd=[round(each.cost_nano_usd / NANO, 6) for each in dense],
    )


def percentile_seconds(classes: Counter[int], share: float) -> float | None:
    """Returns the latency that this share of the answers did not exceed, in seconds; `None` without answers."""
    remaining = share * classes.total()
    for latency_class in sorted(classes):
        remaining -= classes[latency_class]
        if remaining <= 0:
            return round(float(LATENCY_RATIO**latency_class), 4)
    return None


def latency_counts(classes: Counter[int]) -> dict[str, int]:
    """Returns the number of answers by the upper bound of their latency, in seconds."""
    # Four digits, not decimals, tell the classes of less than 2 ms apart.
    return {f"{LATENCY_RATIO**each:.4g}": classes[each] for each in sorted(classes)}


def latency_class(seconds: float) -> int:
    """Returns the latency class of a duration."""
    return math.ceil(math.log(max(seconds, 1e-6)) / _LOG_RATIO)


def _levels(start: int, seconds: int, events: Sequence[tuple[int, int, int, int]]) -> list[float]:
    """Returns the mean number of things that have begun and not ended, by interval.

    Args:
        start: Unix time of the first interval.
        seconds: Length of an interval.
        events: Number of beginnings, sum of their times in milliseconds, number of ends, and sum of their times.
    """
    levels, open_before = [], 0
    for index, (begun, begun_ms, ended, ended_ms) in enumerate(events):
        end_ms = (start + (index + 1) * seconds) * 1000
        area_ms = open_before * seconds * 1000 + (begun * end_ms - begun_ms) - (ended * end_ms - ended_ms)
        levels.append(round(max(0, area_ms) / (seconds * 1000), 2))
        open_before += begun - ended
    return levels
