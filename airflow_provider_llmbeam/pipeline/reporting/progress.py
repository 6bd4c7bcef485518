"""Progress of a running job: a bar on a terminal, a line every few seconds in a log."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

from tqdm import tqdm

from airflow_provider_llmbeam.counts import Counts, progress_line
from airflow_provider_llmbeam.spec.model.price import Price

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
]
_NAMES: tuple[Count, ...] = get_args(Count)


class Progress:
    """Counts of this process; every method is thread-safe."""

    def __init__(self) -> None:
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


@contextmanager
def shown_progress(price: Price | None = None, interval_seconds: float = 5.0) -> Iterator[None]:
    """Shows `PROGRESS` while the body runs, with the cost if a price is known."""
    PROGRESS.reset()
    ended = threading.Event()
    show = _show_bar if sys.stderr.isatty() else _show_lines
    thread = threading.Thread(target=show, args=(ended, price, interval_seconds), name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _show_lines(ended: threading.Event, price: Price | None, interval_seconds: float) -> None:
    """Logs a line per change."""
    shown, history = Counts(), deque([(time.monotonic(), 0)], maxlen=7)
    while True:
        over = ended.wait(interval_seconds)
        now = PROGRESS.snapshot()
        history.append((time.monotonic(), now.done))
        if now != shown:
            _log.info("%s", progress_line(now, _rate(history), _cost_usd(now, price)))
            shown = now
        if over:
            return


def _cost_usd(now: Counts, price: Price | None) -> float | None:
    return None if price is None else price.cost_usd(now.input_tokens, now.output_tokens)


def _rate(history: deque[tuple[float, int]]) -> float:
    (first_at, first_done), (last_at, last_done) = history[0], history[-1]
    return (last_done - first_done) / (last_at - first_at) if last_at > first_at else 0.0


def _show_bar(ended: threading.Event, price: Price | None, interval_seconds: float) -> None:
    """Updates a bar; `interval_seconds` applies to logs."""
    with tqdm(unit=" rows", dynamic_ncols=True, file=sys.stderr) as bar:
        while True:
            over = ended.wait(0.2)
            now = PROGRESS.snapshot()
            bar.total = now.rows
            cost_usd = _cost_usd(now, price)
            cost = "" if cost_usd is None else f" (${cost_usd:,.2f})"
            bar.set_postfix_str(
                f"{now.tokens:,} tokens{cost}, {now.rejections:,} × 429, {now.failed:,} failed", refresh=False
            )
            bar.update(now.done - bar.n)
            bar.refresh()
            if over:
                return
