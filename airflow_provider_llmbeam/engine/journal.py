"""record: stores every answer as it arrives, so that it is not paid for again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Protocol

from airflow_provider_llmbeam.engine.outcome import Completion, Outcome
from airflow_provider_llmbeam.engine.prompt import Prompt

_log = logging.getLogger(__name__)

_FIELDS = tuple(field.name for field in dataclasses.fields(Completion))
#: `json.dumps` with options makes an encoder for each call, which is half of its time.
_to_json = json.JSONEncoder(ensure_ascii=False).encode


class Files(Protocol):
    """The filesystem that holds a journal; `apache_beam`'s `FileSystems` in a pipeline."""

    def create(self, uri: str) -> IO[bytes]:
        """Opens a new file for writing."""
        ...

    def open(self, uri: str) -> IO[bytes]:
        """Opens a file for reading."""
        ...

    def match(self, pattern: str) -> list[str]:
        """Returns the files that match a pattern, possibly none."""
        ...


class Journal:
    """Answers in segments below one directory. Each batch writes its own segments, named after its prompts.

    Args:
        directory: Directory of the segments; ends in `/`.
        job: Job of the answers, if several jobs share the directory.
        files: Filesystem of the directory.
        oldest_at: Unix time; older answers are requested again.
        clock: Monotonic clock, in seconds.
    """

    def __init__(
        self,
        directory: str,
        *,
        job: str = "",
        files: Files,
        oldest_at: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._job = job
        self._files = files
        self._oldest_at = oldest_at
        self._clock = clock

    def batch(self, prompts: Sequence[Prompt], fingerprints: Sequence[str]) -> BatchJournal:
        """Opens the record of one batch, and reads what an earlier attempt has recorded.

        A runner that repeats a bundle sends the same batch again: its segments are found by their name, and the
        answers in them are not requested again.

        Args:
            prompts: The batch.
            fingerprints: Fingerprint of each prompt, in the same order.
        """
        name = hashlib.sha256("".join(fingerprints).encode()).hexdigest()[:32]
        earlier: dict[str, Completion] = {}
        for uri in self._files.match(f"{self._directory}{name}-*.jsonl"):
            with self._files.open(uri) as lines:
                earlier.update(
                    (entry.fingerprint, entry.completion)
                    for entry in read_entries(iter(lines))
                    if entry.completion.answered_at >= self._oldest_at
                )
        return BatchJournal(
            create=lambda: self._files.create(f"{self._directory}{name}-{uuid.uuid4().hex}.jsonl"),
            job=self._job,
            fingerprints=dict(zip(prompts, fingerprints, strict=True)),
            earlier=[earlier.get(fingerprint) for fingerprint in fingerprints],
            clock=self._clock,
        )


class BatchJournal:
    """The record of one batch; an engine `Observer`.

    A line of a local file is visible at once. A segment of an object store is visible when it is closed, so
    segments are short in time, and `close` ends the last one before the batch is returned.

    Attributes:
        earlier: Answer of each prompt of the batch that an earlier attempt recorded, or `None`.
    """

    SEGMENT_SECONDS = 15.0

    def __init__(
        self,
        *,
        create: Callable[[], IO[bytes]],
        job: str,
        fingerprints: Mapping[Prompt, str],
        earlier: Sequence[Completion | None],
        clock: Callable[[], float],
    ) -> None:
        self.earlier = earlier
        self._create = create
        self._job = job
        self._fingerprints = fingerprints
        self._clock = clock
        self._lock = threading.Lock()
        self._segment: IO[bytes] | None = None
        self._opened_at = 0.0

    def sent(self) -> None:
        """Does nothing: a request is not an answer."""

    def rejected(self, hold_seconds: float) -> None:
        """Does nothing: a 429 is not an answer."""

    def finished(self, prompt: Prompt, outcome: Outcome) -> None:
        """Records an answer. Failures are not recorded, so that another run tries them again."""
        if not isinstance(outcome, Completion):
            return
        line = encode_entry(self._fingerprints[prompt], self._job, outcome)
        with self._lock:
            segment = self._current_segment()
            segment.write(line)
            segment.flush()

    def close(self) -> None:
        """Closes the current segment, which makes its answers visible to all readers."""
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
            self._segment = self._create()
            self._opened_at = now
        return self._segment


@dataclass(frozen=True)
class Entry:
    """One journal line.

    Attributes:
        fingerprint: Fingerprint of the prompt.
        job: Job that requested the answer.
        completion: The answer.
    """

    fingerprint: str
    job: str
    completion: Completion


def encode_entry(fingerprint: str, job: str, completion: Completion) -> bytes:
    """Encodes an answer as one line."""
    entry = {"fingerprint": fingerprint, "job": job, **{name: getattr(completion, name) for name in _FIELDS}}
    return _to_json(entry).encode("utf-8", "surrogatepass") + b"\n"


def read_entries(lines: Iterable[bytes]) -> Iterator[Entry]:
    """Reads a segment; a line that a crash left incomplete is skipped, since its answer was never returned."""
    for line in lines:
        try:
            entry = json.loads(line)
            yield Entry(entry.pop("fingerprint"), entry.pop("job", ""), Completion(**entry))
        except (ValueError, TypeError, KeyError, AttributeError):
            _log.warning("Skipped an incomplete journal line of %d bytes; its prompt is sent again.", len(line))
