"""Output rows as Parquet, and the Arrow types of answers with a schema."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_llmbeam.pipeline.columns import OutputColumns
from airflow_provider_llmbeam.pipeline.sinks.key_types import OUTPUT_TYPES, KeyTypes
from airflow_provider_llmbeam.pipeline.staged_bytes import bytes_of, without_bytes
from airflow_provider_llmbeam.spec.plain_values import INFINITE
from airflow_provider_llmbeam.spec.prompt.answer_type import AnswerType

_log = logging.getLogger("llmbeam")

#: Rows per row group; fewer for vectors, as a Python float takes 32 bytes: 3,072 per row make 100 MB.
_ROW_GROUP, _VECTORS_ROW_GROUP = 10_000, 1_000
_TYPES = {
    "boolean": pa.bool_(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "text": pa.string(),
    "bytes": pa.binary(),
}
_OUTPUT_TYPES = {column: _TYPES[kind] for column, kind in OUTPUT_TYPES.items()}
#: 32-bit numbers, as models compute.
_VECTOR = pa.list_(pa.float32())
#: Types of answers with a schema.
_PLAIN = {
    "text": pa.string(),
    "any": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
}
_CONTENT = b"llmbeam.content"
#: Names of the kinds of values in each column of the source, as JSON.
_KINDS = b"llmbeam.kinds"
#: The field in a JSON line, where quotes in texts are escaped.
_ORIGIN = re.compile(rb'"llmbeam_origin":"\w+",')

#: The schema of a file, and the kinds of values in its columns of the source.
FileTypes = tuple[pa.Schema, dict[str, list[str]]]


@dataclass(frozen=True, slots=True)
class Staged:
    """Description of a staged file.

    Attributes:
        types: Types of the columns.
        rows: Number of rows.
        content: Digest of the rows without their order and `origin`, which differ between attempts of a job.
        kinds: Names of the kinds of values in each column of the source.
    """

    types: dict[str, pa.DataType]
    rows: int
    content: str
    kinds: dict[str, list[str]]


def write_parquet(lines: Iterable[bytes], file: IO[bytes], columns: OutputColumns) -> None:
    """Writes records to Parquet.

    Columns of the source are integer, number or boolean where every value is, else text. Vectors are lists of
    numbers, answers with a schema have its types, others are text. A column with a value that does not fit, e.g.
    an integer of 70 bits, is JSON text: all answers are paid for, and every retry would have the same value.

    Args:
        lines: Records as JSON lines.
        file: Target file.
        columns: The columns.
    """
    answer_types = output_types(columns)
    doubtful = doubtful_types(columns)
    with tempfile.TemporaryFile() as spool:
        types, content = KeyTypes(columns.from_source), 0
        for line in lines:
            content ^= int.from_bytes(hashlib.sha256(_ORIGIN.sub(b"", line)).digest())
            record = json.loads(line)
            types.add(record)
            for name in [name for name, kind in doubtful.items() if not fits(record[name], kind)]:
                _log.warning("Column %r is JSON text, as an answer does not fit into %s", name, doubtful.pop(name))
                answer_types[name] = pa.string()
            spool.write(line)
        spool.seek(0)
        from_source = [(column, _TYPES[found]) for column, found in types.types().items()]
        schema = pa.schema([*from_source, *answer_types.items()])
        converters = {field.name: _converter(field.type, is_answer=field.name in doubtful) for field in schema}
        with pq.ParquetWriter(file, schema) as writer:
            size = _VECTORS_ROW_GROUP if columns.has_vectors else _ROW_GROUP
            while rows := [_typed_row(json.loads(line), converters) for line in _take(spool, size)]:
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))
            kinds = {column: sorted(found) for column, found in types.kinds.items()}
            facts = {_CONTENT: f"{content:064x}".encode(), _KINDS: json.dumps(kinds).encode()}
            writer.add_key_value_metadata(facts)


def doubtful_types(columns: OutputColumns) -> dict[str, pa.DataType]:
    """Returns the types of the columns of an answer with a schema, whose integers have any length."""
    if columns.answer is None:
        return {}
    return {name: kind for name, kind in output_types(columns).items() if name not in columns.after_answer}


def read_staged(file: IO[bytes]) -> Staged:
    """Reads the description of a file that `write_parquet` wrote."""
    footer = pq.read_metadata(file)
    schema = footer.schema.to_arrow_schema()
    types = {field.name: field.type for field in schema}
    facts = footer.metadata
    return Staged(types, footer.num_rows, facts[_CONTENT].decode(), json.loads(facts[_KINDS]))


def read_types(file: IO[bytes]) -> FileTypes:
    """Reads the types of a file that `write_parquet` wrote."""
    with pq.ParquetFile(file) as table:
        return table.schema_arrow.remove_metadata(), json.loads(table.metadata.metadata[_KINDS])


def common_schema(types: Sequence[FileTypes]) -> pa.Schema:
    """Returns the schema that the rows of some files have in one file.

    Args:
        types: What `read_types` returns for each of them.
    """
    (schema, kinds), *others = types
    common = KeyTypes(kinds)
    for _, found in types:
        common.add_kinds(found)
    # The types of answers differ only where those of a file did not fit.
    answers = {
        field.name: field.type if all(other.field(field.name) == field for other, _ in others) else pa.string()
        for field in schema
    }
    return pa.schema(answers | {column: _TYPES[kind] for column, kind in common.types().items()})


def rewrite_parquet(source: IO[bytes], file: IO[bytes], schema: pa.Schema) -> None:
    """Writes the rows of a file that `write_parquet` wrote with other types of the columns."""
    with pq.ParquetFile(source) as table, pq.ParquetWriter(file, schema) as writer:
        for number in range(table.num_row_groups):
            columns = table.read_row_group(number).columns
            writer.write_table(pa.table([*map(_as_type, columns, schema.types)], schema=schema))
        facts = table.metadata.metadata
        writer.add_key_value_metadata({name: facts[name] for name in (_CONTENT, _KINDS)})


def _as_type(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray | pa.Array:
    if column.type == kind:
        return column
    return pa.array([typed(value, kind) for value in column.to_pylist()], kind)


def output_types(columns: OutputColumns) -> dict[str, pa.DataType]:
    """Returns the types of the columns besides those of the source."""
    answer = _OUTPUT_TYPES["answer"]
    types = {name: _OUTPUT_TYPES[name] for name in columns.after_answer}
    if (fields := columns.fields) is not None:
        return {name: arrow_type(kind, for_bigquery=columns.for_bigquery) for name, kind in fields} | types
    if columns.has_vectors:
        answer = _VECTOR
    elif columns.answer is not None and columns.answer_columns == "struct":
        answer = arrow_type(columns.answer, for_bigquery=columns.for_bigquery)
    return {"answer": answer} | types


def _converter(kind: pa.DataType, *, is_answer: bool) -> Callable[[Any], Any] | None:
    """Returns the function that converts values of a column; `None` if they have its type already."""
    if is_answer:
        return partial(typed, kind=kind)
    if pa.types.is_floating(kind):
        return _number
    if pa.types.is_binary(kind):
        return bytes_of
    return _text if pa.types.is_string(kind) else None


def _number(value: Any) -> Any:
    return float(value) if value in INFINITE else value


def _text(value: Any) -> str | None:
    return None if value is None else as_text(without_bytes(value))


def _typed_row(record: dict[str, Any], converters: Mapping[str, Callable[[Any], Any] | None]) -> dict[str, Any]:
    return {
        name: value if (convert := converters[name]) is None else convert(value) for name, value in record.items()
    }


def _take(lines: IO[bytes], count: int) -> Iterator[bytes]:
    for _, line in zip(range(count), lines, strict=False):
        yield line


def arrow_type(found: AnswerType, *, for_bigquery: bool = False) -> pa.DataType:
    """Returns the type of a column; text, which holds JSON, where the schema gives no type.

    Args:
        found: Type of the values.
        for_bigquery: Whether lists of lists, and lists with nulls, are text: BigQuery has neither.
    """
    match found.kind:
        case "object":
            fields = [(name, arrow_type(inner, for_bigquery=for_bigquery)) for name, inner in found.fields]
            return pa.struct(fields)
        case "array":
            assert found.item is not None
            if for_bigquery and (found.item.kind == "array" or found.item.is_nullable):
                return pa.string()
            return pa.list_(arrow_type(found.item, for_bigquery=for_bigquery))
        case kind:
            return _PLAIN[kind]


def typed(value: Any, kind: pa.DataType) -> Any:
    """Returns a JSON value as a value of an Arrow type.

    Raises:
        ValueError: It does not fit.
        OverflowError: It is an integer that no float holds.
    """
    if value is None:
        return None
    if pa.types.is_string(kind):
        return as_text(value)
    if pa.types.is_struct(kind) and isinstance(value, dict):
        return {field.name: typed(value.get(field.name), field.type) for field in kind}
    if pa.types.is_list(kind) and isinstance(value, list):
        return [typed(item, kind.value_type) for item in value]
    if pa.types.is_boolean(kind) and isinstance(value, bool):
        return value
    if value in INFINITE and pa.types.is_floating(kind):
        return float(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if pa.types.is_floating(kind):
            return float(value)
        if pa.types.is_integer(kind) and value == int(value) and -(2**63) <= value < 2**63:
            return int(value)
    raise ValueError(f"no value of type {kind}")


def fits(value: Any, kind: pa.DataType) -> bool:
    """Returns whether a JSON value is a value of an Arrow type."""
    try:
        typed(value, kind)
    except (ValueError, OverflowError):
        return False
    return True


def as_text(value: Any) -> str:
    """Returns a value for a text column."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.encode("utf-8", "replace").decode()
