"""What a stream has done, in windows of equal length that begin at multiples of it since 1970. Pure.

Each transaction has an increment, and a window is the sum of its increments: all values are whole numbers, so that
any order, and any set of members, has the same sum. The latencies are numbers by class, as those of a report. A
sliding window is the sum of the last windows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from pydantic import TypeAdapter

from airflow_provider_llmbeam.pipeline.reporting.time_series import (
    LATENCY_RATIO,
    latency_class,
    percentile_seconds,
)
from airflow_provider_llmbeam.pipeline.stream.partition import Commit


@dataclass(slots=True)
class Window:
    """What the messages of some transactions became, and what their members did besides.

    Attributes:
        answers: Number of answers committed.
        dead_letter: Number of messages committed to the dead letter, by kind of failure.
        input_tokens: Tokens of their prompts. An answer that a message shares with an earlier one counts once.
        output_tokens: Tokens of their answers, counted in the same way.
        cost_nano_usd: Cost of these tokens, in billionths of a US dollar.
        latencies: Number of messages by class of latency, from the message to its committed record.
        latency_ms: Sum of these latencies, in milliseconds.
        spent_nano_usd: Cost of all that was sent, also to a guard and for what was not committed.
        rejections: Number of 429s.
        lag: Number of offsets that are not committed, as last measured; `None` if it was not.

    The last three are no part of an increment.
    """

    answers: int = 0
    dead_letter: Counter[str] = field(default_factory=Counter)
    input_tokens: int = 0
    output_tokens: int = 0
    cost_nano_usd: int = 0
    latencies: Counter[int] = field(default_factory=Counter)
    latency_ms: int = 0
    spent_nano_usd: int = 0
    rejections: int = 0
    lag: int | None = None

    @property
    def failed(self) -> int:
        """Number of messages committed to the dead letter."""
        return self.dead_letter.total()

    @property
    def messages(self) -> int:
        """Number of messages committed."""
        return self.answers + self.failed

    def add(self, other: Window) -> None:
        """Adds what another window has, e.g. an increment or that of another member."""
        for name in _NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in _COUNTERS:
            getattr(self, name).update(getattr(other, name))
        if other.lag is not None:
            self.lag = (self.lag or 0) + other.lag

    def latency_seconds(self, share: float) -> float | None:
        """Returns the latency that this share of the messages did not exceed, at most a tenth too high."""
        return percentile_seconds(self.latencies, share)


_COUNTERS = ("dead_letter", "latencies")
_NUMBERS = tuple(each.name for each in fields(Window) if each.name not in (*_COUNTERS, "lag"))
#: Classes that are upper bounds of a histogram: 9 ms to 305 s.
BUCKETS = range(-50, 62, 2)
#: What an increment has.
_INCREMENT = (*_COUNTERS, "answers", "input_tokens", "output_tokens", "cost_nano_usd", "latency_ms")
WINDOWS = TypeAdapter(dict[int, Window])
_WINDOW = TypeAdapter(Window)


def begin_of_window(at_ms: int, window_seconds: int) -> int:
    """Returns the Unix time at which the window of a moment begins."""
    return at_ms // 1000 // window_seconds * window_seconds


def begin_of_last(now: float, delay_seconds: float, window_seconds: int) -> int:
    """Returns the begin of the last window that all members have written.

    Args:
        now: Unix time.
        delay_seconds: Time after the end of a window until they have, in seconds.
        window_seconds: Length of a window, in seconds.
    """
    return begin_of_window(int((now - delay_seconds) * 1000), window_seconds) - window_seconds


def increment_of(commits: Sequence[Commit], at_ms: int, commit_seconds: float) -> Window:
    """Returns the increment of a transaction.

    Args:
        commits: What it commits.
        at_ms: Unix time at which it begins, in milliseconds: the timestamp of its records.
        commit_seconds: Time that the last transactions took until they were committed, in seconds. This one is
            expected to take as long.
    """
    increment = Window()
    for result in (result for commit in commits for result in commit.results):
        usage, message = result.usage, result.message
        if usage.failure is None:
            increment.answers += 1
        else:
            increment.dead_letter[usage.failure] += 1
        increment.input_tokens += usage.input_tokens
        increment.output_tokens += usage.output_tokens
        increment.cost_nano_usd += usage.cost_nano_usd
        latency = max(0.0, at_ms / 1000 + commit_seconds - (message.produced_at or message.consumed_at))
        increment.latencies[latency_class(latency)] += 1
        increment.latency_ms += round(latency * 1000)
    return increment


def slide(windows: Mapping[int, Window], last: int, seconds: float, window_seconds: int) -> Window:
    """Returns the sliding window that ends with a window.

    Args:
        windows: The windows, by their begin; one without messages may be missing.
        last: Begin of the last one.
        seconds: Length of the sliding window, in seconds.
        window_seconds: Length of the others.
    """
    found = Window()
    for begin in begins(last, seconds, window_seconds):
        if begin in windows:
            found.add(windows[begin])
    return found


def begins(last: int, seconds: float, window_seconds: int) -> range:
    """Returns the begins of the windows of a sliding window, at least of one."""
    count = max(1, round(seconds / window_seconds))
    return range(last - (count - 1) * window_seconds, last + 1, window_seconds)


def merge(every: Iterable[Mapping[int, Window]]) -> dict[int, Window]:
    """Returns the windows of several members, or of several files, in order."""
    found: dict[int, Window] = {}
    for windows in every:
        for begin, window in windows.items():
            found.setdefault(begin, Window()).add(window)
    return dict(sorted(found.items()))


def bucket_counts(latencies: Counter[int]) -> Iterator[tuple[str, int]]:
    """Yields the cumulative counts of a histogram of Prometheus, each with its upper bound in seconds.

    The bounds are those of every second class, so that they are the same in each process.
    """
    for bound in BUCKETS:
        yield f"{LATENCY_RATIO**bound:.4g}", sum(n for each, n in latencies.items() if each <= bound)
    yield "+Inf", latencies.total()


def encode_increment(increment: Window, **words: Any) -> bytes:
    """Returns the record of an increment.

    Args:
        increment: The increment.
        words: What else it has, e.g. the begin of its window.
    """
    return TypeAdapter(dict[str, Any]).dump_json(words | _WINDOW.dump_python(increment, include={*_INCREMENT}))


def decode_increment(record: bytes) -> tuple[dict[str, Any], Window]:
    """Returns what a record of an increment names besides, and the increment."""
    found = TypeAdapter(dict[str, Any]).validate_json(record)
    values = {name: found.pop(name) for name in _INCREMENT}
    return found, _WINDOW.validate_python(values)
