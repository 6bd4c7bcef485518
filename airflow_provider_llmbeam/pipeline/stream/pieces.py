"""Answers in pieces, while they are generated: for whoever shows them, beside the record that counts.

Pieces are written outside all transactions. Each attempt begins again with sequence 0.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from airflow_provider_llmbeam.engine.backend import ON_TEXT
from airflow_provider_llmbeam.pipeline.elements import Row
from airflow_provider_llmbeam.pipeline.records import encode_record

#: Shortest time between two pieces of an answer, in seconds: models send each token by itself.
INTERVAL_SECONDS = 0.1
#: Columns of a row that say which message it was.
_MESSAGE = ("kafka_topic", "kafka_partition", "kafka_offset")

#: Writes a record, by key and value.
Write = Callable[[bytes, bytes], None]


class Pieces:
    """The pieces of the answer to one message.

    Args:
        row: Row of the message.
        key: Its key; `None` for none.
        write: Writes a piece.
        clock: Monotonic clock, in seconds.
    """

    def __init__(
        self, row: Row, key: bytes | None, write: Write, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._message = {name: row[name] for name in _MESSAGE}
        # All pieces of an answer are in one partition.
        self._key = ":".join(map(str, self._message.values())).encode() if key is None else key
        self._write, self._clock = write, clock
        self._texts: list[str] = []
        self._sequence, self._written_at = 0, float("-inf")

    def begin(self) -> None:
        """Begins an attempt."""
        self._texts, self._sequence, self._written_at = [], 0, float("-inf")

    def add(self, text: str) -> None:
        """Adds a part of the text."""
        self._texts.append(text)
        if self._clock() - self._written_at >= INTERVAL_SECONDS:
            self._send(is_last=False)

    def end(self) -> None:
        """Writes the rest."""
        self._send(is_last=True)

    def _send(self, *, is_last: bool) -> None:
        piece = {**self._message, "sequence": self._sequence, "text": "".join(self._texts), "last": is_last}
        self._write(self._key, encode_record(piece).rstrip(b"\n"))
        self._texts, self._written_at = [], self._clock()
        self._sequence += 1


@contextmanager
def listening(pieces: Pieces | None) -> Iterator[None]:
    """Has the pieces of the requests of the body taken."""
    token = ON_TEXT.set(None if pieces is None else pieces.add)
    try:
        yield
    finally:
        ON_TEXT.reset(token)
