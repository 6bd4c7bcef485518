"""Output rows as Parquet."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

#: Rows per row group; of vectors fewer, as a number in Python takes 32 bytes: 3,072 of them a row make 100 MB so.
_ROW_GROUP, _VECTORS_ROW_GROUP = 10_000, 1_000
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
#: Of 32 bits, as models compute.
_VECTOR = pa.list_(pa.float32())


def write_parquet(
    lines: Iterable[bytes], file: IO[bytes], key: tuple[str, ...], *, has_vectors: bool = False
) -> None:
    """Writes records to Parquet. A key column is integer, number or boolean where every value is, else text.

    Args:
        lines: Records as JSON lines.
        file: Where to.
        key: The key columns.
        has_vectors: Whether each answer is a vector, and so a list of numbers; otherwise it is text.
    """
    output_types = {**_OUTPUT_TYPES, "answer": _VECTOR} if has_vectors else _OUTPUT_TYPES
    with tempfile.TemporaryFile() as spool:
        seen: dict[str, set[type]] = {column: set() for column in key}
        for line in lines:
            record = json.loads(line)
            for column in key:
                seen[column].add(kind_of(record[column]))
            spool.write(line)
        spool.seek(0)
        schema = pa.schema([*((column, column_type(seen[column])) for column in key), *output_types.items()])
        with pq.ParquetWriter(file, schema) as writer:
            size = _VECTORS_ROW_GROUP if has_vectors else _ROW_GROUP
            while rows := [_flat(json.loads(line), schema) for line in _take(spool, size)]:
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))


class _Long(int):
    """Of 54 to 64 bits."""


def kind_of(value: Any) -> type:
    """The type of a value, as far as it decides that of its column."""
    # Beyond 2**53 a float loses it, beyond 2**63 a column does: such numbers are text.
    if type(value) is not int or abs(value) <= 2**53:
        return type(value)
    return _Long if -(2**63) <= value < 2**63 else str


def as_text(value: Any) -> str:
    """The value in a column of texts."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.encode("utf-8", "replace").decode()


def column_type(types: set[type]) -> pa.DataType:
    """The type of a column of such values: text where they have none in common."""
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
        name: as_text(value) if pa.types.is_string(schema.field(name).type) else value
        for name, value in record.items()
    }


def _take(lines: IO[bytes], count: int) -> Iterator[bytes]:
    for _, line in zip(range(count), lines, strict=False):
        yield line
