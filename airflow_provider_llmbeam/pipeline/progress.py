"""How far the job is, while it runs: a bar on a terminal, a line every few seconds in a log."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from tqdm import tqdm

from airflow_provider_llmbeam.counts import Counts, progress_line
from airflow_provider_llmbeam.engine.outcome import Completion, Outcome
from airflow_provider_llmbeam.engine.prompt import Prompt

_log = logging.getLogger(__name__)

Count = Literal[
    "rows",
    "resumed",
    "duplicates",
    "answered",
    "died",
    "requests",
    "rejections",
    "input_tokens",
    "output_tokens",
]


class Progress:
    """Counts what happens in this process. An engine `Observer`; every method is thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def reset(self) -> None:
        """Starts from nothing, for the next job in the same process."""
        with self._lock:
            self._counts.clear()

    def snapshot(self) -> Counts:
        """Returns the counts of this moment."""
        with self._lock:
            return Counts(**self._counts)

    def add(self, count: Count, number: int = 1) -> None:
        """Moves one count on."""
        with self._lock:
            self._counts[count] += number

    def sent(self) -> None:
        """A request left."""
        self.add("requests")

    def rejected(self, hold_seconds: float) -> None:
        """A 429 came back."""
        self.add("rejections")

    def finished(self, prompt: Prompt, outcome: Outcome) -> None:
        """A request ended."""
        self.add("answered" if isinstance(outcome, Completion) else "died")
        self.add("input_tokens", outcome.input_tokens)
        self.add("output_tokens", outcome.output_tokens)


#: Of this process. A job in several processes shows here what its own one does.
PROGRESS = Progress()


@contextmanager
def shown_progress(interval_seconds: float = 5.0) -> Iterator[None]:
    """Shows `PROGRESS` while the body runs."""
    PROGRESS.reset()
    ended = threading.Event()
    show = _show_bar if sys.stderr.isatty() else _show_lines
    thread = threading.Thread(target=show, args=(ended, interval_seconds), name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _show_lines(ended: threading.Event, interval_seconds: float) -> None:
    """Writes a line on each change, none while nothing moves."""
    shown, history = Counts(), deque([(time.monotonic(), 0)], maxlen=7)
    while True:
        over = ended.wait(interval_seconds)
        now = PROGRESS.snapshot()
        history.append((time.monotonic(), now.done))
        if now != shown:
            _log.info("%s", progress_line(now, _rate(history)))
            shown = now
        if over:
            return


def _rate(history: deque[tuple[float, int]]) -> float:
    (first_at, first_done), (last_at, last_done) = history[0], history[-1]
    return (last_done - first_done) / (last_at - first_at) if last_at > first_at else 0.0


def _show_bar(ended: threading.Event, interval_seconds: float) -> None:
    """Moves a bar; `interval_seconds` is for logs."""
    with tqdm(unit=" rows", dynamic_ncols=True, file=sys.stderr) as bar:
        while True:
            over = ended.wait(0.2)
            now = PROGRESS.snapshot()
            bar.total = now.rows
            bar.set_postfix_str(
                f"{now.tokens:,} tokens, {now.rejections:,} × 429, {now.died:,} failed", refresh=False
            )
            bar.update(now.done - bar.n)
            bar.refresh()
            if over:
                return
