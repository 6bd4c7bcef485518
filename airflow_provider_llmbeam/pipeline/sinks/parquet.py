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

from airflow_provider_llmbeam.pipeline.sinks.key_types import OUTPUT_TYPES, KeyTypes

#: Rows per row group; fewer for vectors, as a Python float takes 32 bytes: 3,072 per row make 100 MB.
_ROW_GROUP, _VECTORS_ROW_GROUP = 10_000, 1_000
_TYPES = {"boolean": pa.bool_(), "integer": pa.int64(), "number": pa.float64(), "text": pa.string()}
_OUTPUT_TYPES = {column: _TYPES[kind] for column, kind in OUTPUT_TYPES.items()}
#: 32-bit numbers, as models compute.
_VECTOR = pa.list_(pa.float32())
_CONTENT = b"llmbeam.content"
#: The field in a JSON line, where quotes in texts are escaped.
_ORIGIN = re.compile(rb'"origin": "\w+", ')


@dataclass(frozen=True, slots=True)
class Staged:
    """Description of a staged file.

    Attributes:
        types: Types of the columns.
        rows: Number of rows.
        content: Digest of the rows without their order and `origin`, which differ between attempts of a job.
    """

    types: dict[str, pa.DataType]
    rows: int
    content: str


def write_parquet(
    lines: Iterable[bytes], file: IO[bytes], key: tuple[str, ...], *, has_vectors: bool = False
) -> None:
    """Writes records to Parquet. A key column is integer, number or boolean where every value is, else text.

    Args:
        lines: Records as JSON lines.
        file: Target file.
        key: Key columns.
        has_vectors: Whether the answers are vectors, stored as lists of numbers; otherwise they are text.
    """
    output_types = {**_OUTPUT_TYPES, "answer": _VECTOR} if has_vectors else _OUTPUT_TYPES
    with tempfile.TemporaryFile() as spool:
        types, content = KeyTypes(key), 0
        for line in lines:
            content ^= int.from_bytes(hashlib.sha256(_ORIGIN.sub(b"", line)).digest())
            types.add(json.loads(line))
            spool.write(line)
        spool.seek(0)
        keys = [(column, _TYPES[found]) for column, found in types.types().items()]
        schema = pa.schema([*keys, *output_types.items()])
        with pq.ParquetWriter(file, schema) as writer:
            size = _VECTORS_ROW_GROUP if has_vectors else _ROW_GROUP
            while rows := [_flat(json.loads(line), schema) for line in _take(spool, size)]:
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))
            writer.add_key_value_metadata({_CONTENT: f"{content:064x}".encode()})


def read_staged(file: IO[bytes]) -> Staged:
    """Reads the description of a file that `write_parquet` wrote."""
    footer = pq.read_metadata(file)
    schema = footer.schema.to_arrow_schema()
    types = {field.name: field.type for field in schema}
    return Staged(types, footer.num_rows, footer.metadata[_CONTENT].decode())


def as_text(value: Any) -> str:
    """Returns a value for a text column."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.encode("utf-8", "replace").decode()


def _flat(record: dict[str, Any], schema: pa.Schema) -> dict[str, Any]:
    """Converts values of text columns to JSON text."""
    return {
        name: as_text(value) if pa.types.is_string(schema.field(name).type) else value
        for name, value in record.items()
    }


def _take(lines: IO[bytes], count: int) -> Iterator[bytes]:
    for _, line in zip(range(count), lines, strict=False):
        yield line
