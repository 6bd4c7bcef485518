"""The records that messages become: answers, and the dead letter. Pure."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_llmbeam.pipeline.columns import OutputColumns
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow, FailedRow, Row, failed_row
from airflow_provider_llmbeam.pipeline.records import answer_record, encode_record, encode_text, failed_record
from airflow_provider_llmbeam.pipeline.sources.lines import SHOWN_SIZE
from airflow_provider_llmbeam.pipeline.stream.partition import Message, Result, Usage
from airflow_provider_llmbeam.pipeline.stream.topics import Topics

#: Columns of a message besides its value.
_PLACES = ("kafka_", "pubsub_")


class Outputs:
    """Makes the records of messages.

    Args:
        columns: Columns of the answers.
        key: Column with the keys of the answers; `None` for the keys of their messages.
        topics: The topics.
        max_bytes: Size of the largest record, in bytes.
        has_stores: Whether answers are stored outside Kafka, too.
    """

    def __init__(
        self, columns: OutputColumns, key: str | None, topics: Topics, max_bytes: int, *, has_stores: bool
    ) -> None:
        self._columns, self._key, self._topics, self._max_bytes = columns, key, topics, max_bytes
        self._has_stores = has_stores

    def result(self, message: Message, row: AnsweredRow | FailedRow) -> Result:
        """Returns the record of a message; one that is too large, or whose turn is, is of the dead letter."""
        if (turn := len(message.state or b"")) > self._max_bytes:
            message.state = None
        if isinstance(row, FailedRow):
            return self._failed(message, row)
        record = answer_record(row, self._columns)
        key = message.key if self._key is None else encode_text(record[self._key])
        value = encode_record(record).rstrip(b"\n")  # its size counts, also if it is stored outside Kafka alone
        if turn > self._max_bytes:
            what, size = "turn", turn
        elif self._topics.answers is not None and not self._fits(key, value):
            what, size = "answer", len(value)
        else:
            stored = row if self._has_stores else None
            return Result(message, self._topics.answers, key, value, Usage.of(row), stored)
        reason = f"the {what} is a record of {size:,} bytes, and the topics take {self._max_bytes:,}"
        return self.refused(message, row, reason)

    def refused(self, message: Message, row: AnsweredRow, reason: str) -> Result:
        """Returns the record of an answer that a sink refuses."""
        failed = failed_row(row.masked_row or row.row, "not_stored", reason)
        return self._failed(message, failed, replace(Usage.of(row), failure="not_stored"))

    def _failed(self, message: Message, row: FailedRow, usage: Usage | None = None) -> Result:
        value = encode_record(failed_record(row)).rstrip(b"\n")
        key = message.key if len(message.key or b"") < self._max_bytes // 2 else None
        if not self._fits(message.key, value):
            value = encode_record(failed_record(_shortened(row))).rstrip(b"\n")
        return Result(message, self._topics.dead_letter, key, value, usage or Usage.of(row))

    def _fits(self, key: bytes | None, value: bytes) -> bool:
        return len(value) + len(key or b"") <= self._max_bytes


def _shortened(failed: FailedRow) -> FailedRow:
    """Returns a failed row with the beginnings of its texts, and nothing else but where its message is."""
    row: Row = {
        name: value[:SHOWN_SIZE] if isinstance(value, str) else value
        for name, value in failed.row.items()
        if name.startswith(_PLACES) or isinstance(value, str)
    }
    return FailedRow(row, failed.failure, failed.origin)
