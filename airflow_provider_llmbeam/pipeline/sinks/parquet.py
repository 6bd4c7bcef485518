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

#: Rows per row group; of vectors fewer, as a number in Python takes 32 bytes: 3,072 of them a row make 100 MB so.
_ROW_GROUP, _VECTORS_ROW_GROUP = 10_000, 1_000
_TYPES = {"boolean": pa.bool_(), "integer": pa.int64(), "number": pa.float64(), "text": pa.string()}
_OUTPUT_TYPES = {column: _TYPES[kind] for column, kind in OUTPUT_TYPES.items()}
#: Of 32 bits, as models compute.
_VECTOR = pa.list_(pa.float32())
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
        types, content = KeyTypes(key), 0
        for line in lines:
            content ^= int.from_bytes(hashlib.sha256(_ORIGIN.sub(b"", line)).digest())
            types.see(json.loads(line))
            spool.write(line)
        spool.seek(0)
        keys = [(column, _TYPES[found]) for column, found in types.found().items()]
        schema = pa.schema([*keys, *output_types.items()])
        with pq.ParquetWriter(file, schema) as writer:
            size = _VECTORS_ROW_GROUP if has_vectors else _ROW_GROUP
            while rows := [_flat(json.loads(line), schema) for line in _take(spool, size)]:
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))
            writer.add_key_value_metadata({_CONTENT: f"{content:064x}".encode()})


def read_staged(file: IO[bytes]) -> Staged:
    """Reads what `write_parquet` has noted at the end of its file."""
    footer = pq.read_metadata(file)
    schema = footer.schema.to_arrow_schema()
    types = {field.name: field.type for field in schema}
    return Staged(types, footer.num_rows, footer.metadata[_CONTENT].decode())


def as_text(value: Any) -> str:
    """The value in a column of texts."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.encode("utf-8", "replace").decode()


def _flat(record: dict[str, Any], schema: pa.Schema) -> dict[str, Any]:
    """Turns what is not text into JSON text where the column is text."""
    return {
        name: as_text(value) if pa.types.is_string(schema.field(name).type) else value
        for name, value in record.items()
    }


def _take(lines: IO[bytes], count: int) -> Iterator[bytes]:
    for _, line in zip(range(count), lines, strict=False):
        yield line
