"""Output rows as Parquet."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

#: Rows per row group.
_ROW_GROUP = 10_000
_OUTPUT_TYPES = {
    "answer": pa.string(),
    "origin": pa.string(),
    "model": pa.string(),
    "fingerprint": pa.string(),
    "finish_reason": pa.string(),
    "input_tokens": pa.int64(),
    "output_tokens": pa.int64(),
    "attempts": pa.int64(),
    "latency_seconds": pa.float64(),
}
_CONTENT = b"llmbeam.content"
#: In a line, where a quote inside of a text is escaped.
_ORIGIN = re.compile(rb'"origin": "\w+", ')


@dataclass(frozen=True, slots=True)
class Staged:
    """What a file holds.

    Attributes:
        types: Of its columns.
        rows: How many.
        content: Equal for equal rows, whatever their order and `origin`, which differ from try to try of a job.
    """

    types: dict[str, pa.DataType]
    rows: int
    content: str


def write_parquet(lines: Iterable[bytes], file: IO[bytes], key: tuple[str, ...]) -> None:
    """Writes records to Parquet. A key column is integer, number or boolean where every value is, else text."""
    with tempfile.TemporaryFile() as spool:
        seen: dict[str, set[type]] = {column: set() for column in key}
        content = 0
        for line in lines:
            content ^= int.from_bytes(hashlib.sha256(_ORIGIN.sub(b"", line)).digest())
            record = json.loads(line)
            for column in key:
                seen[column].add(_kind(record[column]))
            spool.write(line)
        spool.seek(0)
        schema = pa.schema([*((column, _arrow_type(seen[column])) for column in key), *_OUTPUT_TYPES.items()])
        with pq.ParquetWriter(file, schema) as writer:
            while rows := [_flat(json.loads(line), schema) for line in _take(spool, _ROW_GROUP)]:
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))
            writer.add_key_value_metadata({_CONTENT: f"{content:064x}".encode()})


def read_staged(file: IO[bytes]) -> Staged:
    """Reads what `write_parquet` has noted at the end of its file."""
    footer = pq.read_metadata(file)
    schema = footer.schema.to_arrow_schema()
    types = {field.name: field.type for field in schema}
    return Staged(types, footer.num_rows, footer.metadata[_CONTENT].decode())


class _Long(int):
    """Of 54 to 64 bits."""


def _kind(value: Any) -> type:
    # Beyond 2**53 a float loses it, beyond 2**63 a column does: such numbers are text.
    if type(value) is not int or abs(value) <= 2**53:
        return type(value)
    return _Long if -(2**63) <= value < 2**63 else str


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.encode("utf-8", "replace").decode()


def _arrow_type(types: set[type]) -> pa.DataType:
    if types == {bool}:
        return pa.bool_()
    if types and types <= {int, _Long}:
        return pa.int64()
    if types and types <= {int, float}:
        return pa.float64()
    return pa.string()


def _flat(record: dict[str, Any], schema: pa.Schema) -> dict[str, Any]:
    """Turns what is not text into JSON text where the column is text."""
    return {
        name: _text(value) if pa.types.is_string(schema.field(name).type) else value
        for name, value in record.items()
    }


def _take(lines: IO[bytes], count: int) -> Iterator[bytes]:
    for _, line in zip(range(count), lines, strict=False):
        yield line
