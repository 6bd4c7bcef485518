"""Progress of a running job: a bar on a terminal, a line every few seconds in a log.

Workers in other processes write their counts to an object each, and the launcher adds them up. Without these
objects a portable runner would show nothing: Flink reports the counters of a bundle when it has ended, and in
batch that is a whole partition. Counts are approximate: those of a lost worker stay, also if its work is repeated.
"""

from __future__ import annotations

import atexit
import json
import logging
import math
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Literal, Self

from pydantic import TypeAdapter
from tqdm import tqdm

from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.spec.protocol.counts import Counts, progress_line, usd

_log = logging.getLogger(__name__)

#: Interval at which a worker writes its counts while they change, in seconds.
WRITE_SECONDS = 15.0
#: Least time between two writes, in seconds: the ends of batches are written, too, and a batch may be one row.
MIN_WRITE_SECONDS = 5.0
#: Interval at which the launcher reads all objects, in seconds.
READ_SECONDS = 15.0

_COUNTS = TypeAdapter(Counts)

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
    "skipped",
]


class Progress:
    """Counts of this process; every method is thread-safe.

    Attributes:
        is_shown: Whether this process shows them.
    """

    def __init__(self) -> None:
        self.is_shown = False
        self._lock = threading.Lock()
        self._counts = Counts()

    def reset(self) -> None:
        """Resets the counts, for the next job in the same process."""
        with self._lock:
            self._counts = Counts()

    def snapshot(self) -> Counts:
        """Returns the current counts."""
        return self._counts

    def add(self, counts: Counts) -> None:
        """Adds to the counts."""
        with self._lock:
            self._counts += counts


#: Counts of this process. With several processes each has its own.
PROGRESS = Progress()


def _no_others(is_final: bool) -> Counts:
    return Counts()


@contextmanager
def show_progress(
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


class ProgressWriter:
    """Writes the counts of this process, from now on, on a thread of its own.

    Args:
        prefix: Beginning of the address of the object.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._uri = f"{prefix}{uuid.uuid4().hex}.json"
        self._before = PROGRESS.snapshot()
        self._written = Counts()
        self._lock = threading.Lock()
        self._is_due = threading.Event()
        self._is_closed = False
        threading.Thread(target=self._write_repeatedly, name="llmbeam-progress", daemon=True).start()
        atexit.register(self.write)

    def write_soon(self) -> None:
        """Has the counts written soon."""
        self._is_due.set()

    def close(self) -> None:
        """Writes the counts for the last time."""
        self._is_closed = True
        self._is_due.set()
        self.write()
        atexit.unregister(self.write)

    def write(self) -> None:
        """Writes the counts if they have changed; an error is not that of the job."""
        with self._lock:
            now = PROGRESS.snapshot() - self._before
            if now == self._written:
                return
            try:
                storage.make_private(self._uri.rpartition("/")[0])
                storage.replace(self._uri, json.dumps(asdict(now)).encode())
            except Exception as error:  # noqa: BLE001 - the next write follows
                _log.debug("The progress of this worker could not be written to %r: %s", self._uri, error)
            else:
                self._written = now

    def _write_repeatedly(self) -> None:
        while not self._is_closed:
            self._is_due.wait(WRITE_SECONDS)
            self._is_due.clear()
            if not self._is_closed:
                self.write()
                time.sleep(MIN_WRITE_SECONDS)


#: Writer of this process, which works for one job at a time.
_writer: ProgressWriter | None = None
_writer_lock = threading.Lock()


def publish_progress(prefix: str | None) -> None:
    """Has this process write its counts from now on, unless it shows them itself.

    Args:
        prefix: Beginning of the addresses of the objects of the run; `None` if nobody reads them.
    """
    global _writer
    if prefix is None or PROGRESS.is_shown or (_writer is not None and _writer.prefix == prefix):
        return
    with _writer_lock:
        if _writer is None or _writer.prefix != prefix:
            if _writer is not None:
                _writer.close()
            _writer = ProgressWriter(prefix)


def write_progress_soon() -> None:
    """Has the counts of this process written soon, if it writes them."""
    if _writer is not None:
        _writer.write_soon()


class ProgressReader:
    """Sum of the counts that the workers of a run have written; a context manager that deletes the objects.

    The objects of an earlier run of the job are deleted at the start, and ignored if its workers write them later.

    Args:
        progress_uri: See `JobPaths.progress_uri`; `None` if there are no other workers.
        run: Name of the run in the addresses of its objects, for readers elsewhere; by default a random one.

    Attributes:
        prefix: Beginning of the addresses of the objects of this run; `None` if there are none.
    """

    def __init__(self, progress_uri: str | None, run: str | None = None) -> None:
        self._progress_uri = progress_uri
        self.prefix = None if progress_uri is None else f"{progress_uri}{run or uuid.uuid4().hex}-"
        self._read_at = -math.inf
        self._counts: dict[str, Counts] = {}

    def __enter__(self) -> Self:
        self.remove_earlier()
        return self

    def remove_earlier(self) -> None:
        """Deletes the objects of earlier runs of the job."""
        _remove(self._progress_uri)

    def __exit__(self, *_: object) -> None:
        _remove(self.prefix)

    def counts(self, is_final: bool) -> Counts:
        """Returns the sum.

        Args:
            is_final: Whether the objects are read also if they were read shortly before.
        """
        now = time.monotonic()
        if self.prefix is not None and (is_final or now - self._read_at >= READ_SECONDS):
            self._read_at = now
            self._read(f"{self.prefix}*.json")
        return sum(self._counts.values(), Counts())

    def _read(self, pattern: str) -> None:
        try:
            for uri in storage.match(pattern):
                self._read_one(uri)
        except Exception as error:  # noqa: BLE001 - the progress of a job is not its result
            _log.debug("The progress of the workers could not be read from %r: %s", pattern, error)

    def _read_one(self, uri: str) -> None:
        content = storage.read(uri)
        try:
            self._counts[uri] = _COUNTS.validate_json(content)
        except ValueError as error:
            _log.debug("%r has no counts: %s", uri, error)


def _show_lines(ended: threading.Event, interval_seconds: float, counts: Callable[[bool], Counts]) -> None:
    """Logs a line per change."""
    shown, history = Counts(), deque([(time.monotonic(), 0)], maxlen=7)
    while True:
        over = ended.wait(interval_seconds)
        now = counts(over)
        history.append((time.monotonic(), now.done))
        if now != shown and (not over or now.is_under_way):
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
            skipped = f", {now.skipped:,} more skipped" if now.skipped else ""
            bar.set_postfix_str(
                f"{now.tokens:,} tokens{cost}, {now.rejections:,} × 429, {now.failed:,} failed{skipped}",
                refresh=False,
            )
            bar.update(now.done - bar.n)
            bar.refresh()
            if over:
                return


def _remove(prefix: str | None) -> None:
    """Deletes the objects whose addresses begin so; an error is not that of the job."""
    try:
        if prefix is not None:
            storage.delete(storage.match(f"{prefix}*"))
    except Exception as error:  # noqa: BLE001 - they are ignored by the next run
        _log.debug("The progress objects %r could not be deleted: %s", prefix, error)
