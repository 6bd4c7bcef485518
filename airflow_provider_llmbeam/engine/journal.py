"""record: every answer is on disk as it arrives, so that nobody pays for it again."""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import IO

from airflow_provider_llmbeam.engine.outcome import Completion, Outcome
from airflow_provider_llmbeam.engine.prompt import Prompt

_log = logging.getLogger(__name__)


class Journal:
    """Appends answers to segments below one directory; each process writes segments of its own.

    A local file shows each line at once. An object store shows a segment when it is closed, so segments are
    short in time, and `close_segment` ends the last one before a batch is handed over.

    Args:
        directory: Ends in `/`.
        create: Opens a new file for writing; `FileSystems.create` fits.
        fingerprint: Names a prompt's answer.
    """

    SEGMENT_SECONDS = 15.0

    def __init__(
        self,
        directory: str,
        *,
        create: Callable[[str], IO[bytes]],
        fingerprint: Callable[[Prompt], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._create = create
        self._fingerprint = fingerprint
        self._clock = clock
        self._lock = threading.Lock()
        self._segment: IO[bytes] | None = None
        self._opened_at = 0.0

    def sent(self) -> None:
        """Does nothing: a request is not an answer."""

    def rejected(self, hold_seconds: float) -> None:
        """Does nothing: a 429 is not an answer."""

    def finished(self, prompt: Prompt, outcome: Outcome) -> None:
        """Writes an answer down. Failures are left out, so that a re-run tries them again."""
        if not isinstance(outcome, Completion):
            return
        line = encode_entry(self._fingerprint(prompt), outcome)
        with self._lock:
            segment = self._current_segment()
            segment.write(line)
            segment.flush()

    def close_segment(self) -> None:
        """Makes what was written visible to every reader."""
        with self._lock:
            if self._segment is not None:
                self._segment.close()
                self._segment = None

    def _current_segment(self) -> IO[bytes]:
        now = self._clock()
        if self._segment is not None and now - self._opened_at > self.SEGMENT_SECONDS:
            self._segment.close()
            self._segment = None
        if self._segment is None:
            self._segment = self._create(f"{self._directory}{uuid.uuid4().hex}.jsonl")
            self._opened_at = now
        return self._segment


def encode_entry(fingerprint: str, completion: Completion) -> bytes:
    """One journal line."""
    values = {field.name: getattr(completion, field.name) for field in dataclasses.fields(completion)}
    entry = {"fingerprint": fingerprint, **values}
    return json.dumps(entry, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def read_entries(lines: Iterator[bytes]) -> Iterator[tuple[str, Completion]]:
    """Reads a segment; a line torn by a crash is passed over, since its answer was never handed on."""
    for line in lines:
        try:
            entry = json.loads(line)
            yield entry.pop("fingerprint"), Completion(**entry)
        except (ValueError, TypeError, KeyError, AttributeError):
            _log.warning("Passed over a torn journal line of %d bytes; its row is asked again.", len(line))
