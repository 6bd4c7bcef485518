"""Messages of a queue as lines of a file, and the rows that they become."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import apache_beam as beam
import orjson

from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.elements import FailedRow, Row, failed_row
from airflow_provider_llmbeam.pipeline.sources.files import file_parts, parse_json_line
from airflow_provider_llmbeam.pipeline.sources.lines import MAX_ROW_SIZE, SHOWN_SIZE, Line, read_part
from airflow_provider_llmbeam.spec.job import JobSpec

#: Fields of a line besides the columns of its row.
_VALUE, _FAULT = "llmbeam_value", "llmbeam_fault"
#: The frame of a schema registry: a byte 0 and the number of the schema. Source: docs.confluent.io, "Wire format".
_MAGIC_BYTE, _FRAME_BYTES = b"\0", 5


def message_rows(root: beam.Pipeline, uri: str, value_format: Literal["json", "text"]) -> beam.PCollection:
    """Reads a file of messages: `Row`s, and a `FailedRow` for each message that cannot be parsed."""
    lines = file_parts(root, uri, "jsonl") | "Lines" >> beam.FlatMap(read_part)
    return lines | "ParseMessage" >> beam.FlatMap(parse_message, value_format)


def complete_uri(messages_uri: str) -> str:
    """Returns the address of the file that says that a file of messages is complete."""
    return f"{messages_uri}.complete"


def discard(spec: JobSpec) -> None:
    """Deletes the messages that a run has taken: first what says that they are complete."""
    for pattern in ("*.complete", "*"):
        storage.delete(storage.match(f"{spec.paths.export_uri}{pattern}"))


def encode_message(columns: Mapping[str, Any], value: bytes | None) -> bytes:
    """Encodes a message as one line.

    Args:
        columns: What is known of the message, by column.
        value: Its value.
    """
    return orjson.dumps(_fields(columns, value), option=orjson.OPT_APPEND_NEWLINE)


def row_of_message(
    columns: Mapping[str, Any], value: bytes | None, value_format: Literal["json", "text"]
) -> Row | FailedRow:
    """Returns the row of a message; see `encode_message` for the arguments."""
    if value is not None and len(value) > MAX_ROW_SIZE:
        return _too_long(columns, value, len(value))
    return _row(_fields(columns, value), value_format)


def _fields(columns: Mapping[str, Any], value: bytes | None) -> dict[str, Any]:
    line = {**columns}
    if value is None:
        line[_FAULT] = "the message has no value (a tombstone)"
    else:
        if value.startswith(_MAGIC_BYTE) and len(value) >= _FRAME_BYTES:
            value, line[_FAULT] = _unframed(value)
        try:
            line[_VALUE] = value.decode()
        except UnicodeDecodeError as error:
            line[_VALUE] = text_of(value)
            line[_FAULT] = line.get(_FAULT) or f"the value is not UTF-8 text: {error.reason} at byte {error.start}"
    return line


def _unframed(value: bytes) -> tuple[bytes, str | None]:
    """Returns the JSON in the frame of a schema registry, or the value and why it is none."""
    content = value[_FRAME_BYTES:]
    try:
        orjson.loads(content)
    except ValueError:
        schema = int.from_bytes(value[1:_FRAME_BYTES])
        return value, (
            f"the value has the frame of a schema registry (magic byte 0, schema {schema}), and no JSON in it: "
            "Avro and Protobuf are not read"
        )
    return content, None


def text_of(value: bytes) -> str:
    r"""Returns bytes as text; those that are not UTF-8 as `\xff`."""
    return value.decode("utf-8", "backslashreplace")


def parse_message(line: Line, value_format: Literal["json", "text"]) -> Iterator[Row | FailedRow]:
    """Parses the line of a message: exactly one row."""
    yield _row(orjson.loads(line.text), value_format) if line.is_complete else _too_long({}, line.text, line.size)


def _too_long(columns: Mapping[str, Any], text: bytes, size: int) -> FailedRow:
    message = f"a message of {size:,} bytes; at most {MAX_ROW_SIZE:,} are read"
    return failed_row({**columns, "llmbeam_raw": text_of(text[:SHOWN_SIZE])}, "unreadable_row", message)


def _row(columns: dict[str, Any], value_format: Literal["json", "text"]) -> Row | FailedRow:
    value, fault = columns.pop(_VALUE, ""), columns.pop(_FAULT, None)
    if fault is not None:
        return failed_row({**columns, "llmbeam_raw": value}, "unreadable_row", fault)
    if value_format == "text":
        return {"value": value, **columns}
    return _object(value, columns)


def _object(value: str, columns: Row) -> Row | FailedRow:
    for found in parse_json_line(value.encode()):
        if isinstance(found, FailedRow):
            return FailedRow({**columns, **found.row}, found.failure)
        return {**found, **columns}
    return failed_row({**columns, "llmbeam_raw": value}, "unreadable_row", "the value is blank, not a JSON object")
