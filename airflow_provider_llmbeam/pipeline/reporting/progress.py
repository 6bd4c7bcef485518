"""Progress of a running job: a bar on a terminal, a line every few seconds in a log."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, get_args

from tqdm import tqdm

from airflow_provider_llmbeam.spec.protocol.counts import Counts, progress_line, usd

_log = logging.getLogger(__name__)

Count = Literal[
    "rows",
    "resumed",
    "duplicates",
    "answered",
    "failed",
    "requests",
    "rejections",
    "input_tokens",
    "output_tokens",
    "cost_nano_usd",
]
_NAMES: tuple[Count, ...] = get_args(Count)


class Progress:
    """Counts of this process; every method is thread-safe.

    Attributes:
        is_shown: Whether this process shows them.
    """

    def __init__(self) -> None:
        self.is_shown = False
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def reset(self) -> None:
        """Resets the counts, for the next job in the same process."""
        with self._lock:
            self._counts.clear()

    def snapshot(self) -> Counts:
        """Returns the current counts."""
        with self._lock:
            return Counts(**self._counts)

    def add(self, counts: Counts) -> None:
        """Adds to the counts."""
        with self._lock:
            for name in _NAMES:
                self._counts[name] += getattr(counts, name)


#: Counts of this process. With several processes each has its own.
PROGRESS = Progress()


def _no_others(is_final: bool) -> Counts:
    return Counts()


@contextmanager
def shown_progress(
    interval_seconds: float = 5.0,
    others: Callable[[bool], Counts] = _no_others,
    watches: Sequence[Callable[[Counts], None]] = (),
) -> Iterator[None]:
    """Shows `PROGRESS` while the body runs.

    Args:
        interval_seconds: Interval between two lines of a log.
        others: Returns the counts of other processes, which are added; its argument is whether it is called for
            the last time.
        watches: Functions that are called with the counts whenever they are shown.
    """
    PROGRESS.reset()
    PROGRESS.is_shown = True
    ended = threading.Event()
    show = _show_bar if sys.stderr.isatty() else _show_lines

    def counts(is_final: bool) -> Counts:
        found = PROGRESS.snapshot() + others(is_final)
        for watch in watches:
            watch(found)
        return found

    arguments = (ended, interval_seconds, counts)
    thread = threading.Thread(target=show, args=arguments, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        PROGRESS.is_shown = False


def _show_lines(ended: threading.Event, interval_seconds: float, counts: Callable[[bool], Counts]) -> None:
    """Logs a line per change."""
    shown, history = Counts(), deque([(time.monotonic(), 0)], maxlen=7)
    while True:
        over = ended.wait(interval_seconds)
        now = counts(over)
        history.append((time.monotonic(), now.done))
        if now != shown:
            _log.info("%s", progress_line(now, _rate(history)))
            shown = now
        if over:
            return


def _rate(history: deque[tuple[float, int]]) -> float:
    (first_at, first_done), (last_at, last_done) = history[0], history[-1]
    return (last_done - first_done) / (last_at - first_at) if last_at > first_at else 0.0


def _show_bar(ended: threading.Event, interval_seconds: float, counts: Callable[[bool], Counts]) -> None:
    """Updates a bar; `interval_seconds` applies to logs."""
    with tqdm(unit=" rows", dynamic_ncols=True, file=sys.stderr) as bar:
        while True:
            over = ended.wait(0.2)
            now = counts(over)
            bar.total = now.rows
            cost = f" ({usd(now.cost_usd)})" if now.cost_nano_usd else ""
            bar.set_postfix_str(
                f"{now.tokens:,} tokens{cost}, {now.rejections:,} × 429, {now.failed:,} failed", refresh=False
            )
            bar.update(now.done - bar.n)
            bar.refresh()
            if over:
                return
