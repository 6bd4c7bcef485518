"""Files of rows that BigQuery loads and extracts: JSON lines, CSV, Avro, Parquet."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmbeam_sandbox.bigquery.columns import (
    Field,
    arrow_schema,
    exported,
    field_of,
    is_repeated,
    parsed_row,
    type_of,
)
from llmbeam_sandbox.core.rest import RestError

_AVRO: dict[str, Any] = {
    "INTEGER": "long",
    "FLOAT": "double",
    "BOOLEAN": "boolean",
    "BYTES": "bytes",
    "TIMESTAMP": {"type": "long", "logicalType": "timestamp-micros"},
    "DATE": {"type": "int", "logicalType": "date"},
    "TIME": {"type": "long", "logicalType": "time-micros"},
    "DATETIME": {"type": "string", "sqlType": "DATETIME"},
    "NUMERIC": {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 9},
    "BIGNUMERIC": {"type": "bytes", "logicalType": "decimal", "precision": 77, "scale": 38},
}
_FROM_AVRO = {"long": "INTEGER", "int": "INTEGER", "double": "FLOAT", "float": "FLOAT"} | {
    "boolean": "BOOLEAN",
    "bytes": "BYTES",
    "timestamp-micros": "TIMESTAMP",
    "timestamp-millis": "TIMESTAMP",
    "date": "DATE",
    "time-micros": "TIME",
    "decimal": "NUMERIC",
}
_TEXT = frozenset({"CSV", "NEWLINE_DELIMITED_JSON"})
_NUMBERS = (("INTEGER", re.compile(r"[+-]?\d+")), ("FLOAT", re.compile(r"[+-]?\d*\.?\d+([eE][+-]?\d+)?")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The source of a load job.

    Attributes:
        format: `sourceFormat`, in upper case.
        files: URI ("" for an upload) and content of each file.
        fields: Schema to read with; empty uses that of the files.
        options: `load` configuration of the job.
    """

    format: str
    files: Sequence[tuple[str, bytes]]
    fields: Sequence[Field]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of a load job.

    Attributes:
        fields: Schema of the rows.
        table: Arrow table of the rows.
        bad: Number of invalid rows that were skipped, as `maxBadRecords` allows.
    """

    fields: Sequence[Field]
    table: Any
    bad: int = 0


def read(source: Source) -> Rows:
    """Reads all files of a load job.

    Raises:
        RestError: The format or the schema is unknown, or rows do not fit.
    """
    if source.format == "PARQUET":
        return _read_parquet(source)
    reader = {"NEWLINE_DELIMITED_JSON": _json_rows, "AVRO": _avro_rows, "CSV": _csv_rows}.get(source.format)
    if reader is None:
        raise RestError(400, f"The sandbox does not load files of the format {source.format}.", "invalid")
    numbered = [(uri, place, row) for uri, data in source.files for place, row in reader(source, _unzipped(data))]
    fields = source.fields or _found_fields(source, [row for _, _, row in numbered])
    good, errors = [], []
    for uri, place, row in numbered:
        try:
            if isinstance(row, ValueError):
                raise row
            good.append(parsed_row(row, fields, ignores_unknown=bool(source.options.get("ignoreUnknownValues"))))
        except ValueError as error:
            errors.append((uri, place, str(error)))
    if len(errors) > int(source.options.get("maxBadRecords") or 0):
        raise _unreadable(source, len(numbered), errors)
    import pyarrow as pa

    return Rows(fields=fields, table=pa.Table.from_pylist(good, schema=arrow_schema(fields)), bad=len(errors))


def _unreadable(source: Source, count: int, errors: list[tuple[str, int, str]]) -> RestError:
    word = {"NEWLINE_DELIMITED_JSON": "JSON"}.get(source.format, source.format)
    start = "Error while reading data, error message: "
    message = (
        f"{start}{word} table encountered too many errors, giving up. Rows: {count}; errors: {len(errors)}. "
        "Please look into the errors[] collection for more details."
    )
    details = [{"reason": "invalid", "message": message}]
    for uri, place, text in errors[:5]:
        text_of_error = f"{start}{word} parsing error in row starting at position {place}: {text}"
        details.append(
            {"reason": "invalid", "message": f"{text_of_error} File: {uri}" if uri else text_of_error}
            | _location(uri)
        )
    return RestError(400, message, "invalid", details=details)


def _location(uri: str) -> dict[str, str]:
    return {"location": uri} if uri else {}


def _unzipped(data: bytes) -> bytes:
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def _json_rows(source: Source, data: bytes) -> Iterator[tuple[int, Any]]:
    place = 0
    for line in data.split(b"\n"):
        if line.strip():
            try:
                row = json.loads(line)
                yield place, row if isinstance(row, dict) else ValueError("Start of array or object expected.")
            except ValueError:
                yield place, ValueError("Parser terminated before end of string")
        place += len(line) + 1


def _csv_rows(source: Source, data: bytes) -> Iterator[tuple[int, Any]]:
    options = source.options
    lines = csv.reader(
        io.StringIO(data.decode(options.get("encoding") or "UTF-8"), newline=""),
        delimiter=options.get("fieldDelimiter") or ",",
        quotechar=options.get("quote") or '"',
    )
    names = [one["name"] for one in source.fields]
    for number, cells in enumerate(lines):
        if number < int(options.get("skipLeadingRows") or (0 if names else 1)):
            names = names or cells
            continue
        names = names or [f"string_field_{index}" for index in range(len(cells))]
        if len(cells) > len(names):
            yield (
                number,
                ValueError(f"Too many values in row. Found {len(cells)} column(s) while expecting {len(names)}."),
            )
        elif cells:
            null = options.get("nullMarker", "")
            yield number, {name: None if text == null else text for name, text in zip(names, cells, strict=False)}


def _avro_rows(source: Source, data: bytes) -> Iterator[tuple[int, Any]]:
    import fastavro

    yield from enumerate(fastavro.reader(io.BytesIO(data)))


def _found_fields(source: Source, rows: list[Any]) -> list[dict[str, Any]]:
    if source.format == "AVRO":
        import fastavro

        schema: Any = fastavro.reader(io.BytesIO(source.files[0][1])).writer_schema
        return [_from_avro(one["name"], one["type"]) for one in schema["fields"]]
    if not source.options.get("autodetect"):
        raise RestError(400, "No schema specified on job or table.", "invalid")
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        for name, value in row.items() if isinstance(row, dict) else ():
            guess = _guess(name, value)
            known = found.setdefault(name, guess)
            if known["type"] == "NULL" or {known["type"], guess["type"]} == {"INTEGER", "FLOAT"}:
                found[name] = guess if guess["type"] != "INTEGER" else known | {"type": "FLOAT"}
            elif guess["type"] not in ("NULL", known["type"]):
                found[name] = known | {"type": "STRING"}
    return [one | {"type": "STRING"} if one["type"] == "NULL" else one for one in found.values()]


def _guess(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, list):
        return {**_guess(name, value[0] if value else ""), "mode": "REPEATED"}
    if isinstance(value, dict):
        return {"name": name, "type": "RECORD", "fields": [_guess(key, one) for key, one in value.items()]}
    if isinstance(value, str):
        kind = next((kind for kind, pattern in _NUMBERS if pattern.fullmatch(value)), "STRING")
    else:
        kind = {bool: "BOOLEAN", int: "INTEGER", float: "FLOAT"}.get(type(value), "NULL")
    return {"name": name, "type": kind, "mode": "NULLABLE"}


def _from_avro(name: str, kind: Any) -> dict[str, Any]:
    if isinstance(kind, list):
        inner = next(one for one in kind if one != "null")
        return {"mode": "NULLABLE"} | _from_avro(name, inner)
    if isinstance(kind, dict) and kind["type"] == "array":
        return {**_from_avro(name, kind["items"]), "mode": "REPEATED"}
    if isinstance(kind, dict) and kind["type"] == "record":
        return {
            "name": name,
            "type": "RECORD",
            "fields": [_from_avro(one["name"], one["type"]) for one in kind["fields"]],
        }
    if isinstance(kind, dict):
        text = kind.get("sqlType") or _FROM_AVRO.get(kind.get("logicalType") or kind["type"], "STRING")
        return {"name": name, "type": text}
    return {"name": name, "type": _FROM_AVRO.get(kind, "STRING")}


def _read_parquet(source: Source) -> Rows:
    import duckdb
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pa.concat_tables([pq.read_table(io.BytesIO(data)) for _, data in source.files])
    except pa.ArrowInvalid as error:
        message = f"Error while reading data, error message: Input file is not in Parquet format. {error}"
        raise RestError(400, message, "invalid") from error
    if source.fields:
        return Rows(fields=source.fields, table=table)
    with duckdb.connect() as connection:
        shape = connection.from_arrow(table)
        fields = [field_of(name, kind) for name, kind in zip(shape.columns, shape.types, strict=True)]
    return Rows(fields=fields, table=table)


def write(table: Any, fields: Sequence[Field], options: Mapping[str, Any]) -> bytes:
    """Returns an Arrow table as one file of an extract job.

    Raises:
        RestError: The format is unknown.
    """
    name = str(options.get("destinationFormat") or "CSV").upper()
    writers: Mapping[str, Callable[[Any, Sequence[Field], Mapping[str, Any]], bytes]] = {
        "NEWLINE_DELIMITED_JSON": _write_json,
        "AVRO": _write_avro,
        "PARQUET": _write_parquet,
        "CSV": _write_csv,
    }
    if name not in writers:
        raise RestError(400, f"The sandbox does not extract to the format {name}.", "invalid")
    data = writers[name](table, fields, options)
    return gzip.compress(data) if options.get("compression") == "GZIP" and name in _TEXT else data


def _write_json(table: Any, fields: Sequence[Field], options: Mapping[str, Any]) -> bytes:
    rows = ({one["name"]: exported(row[one["name"]], one) for one in fields} for row in table.to_pylist())
    kept = ({name: value for name, value in row.items() if value is not None} for row in rows)
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept).encode()


def _write_csv(table: Any, fields: Sequence[Field], options: Mapping[str, Any]) -> bytes:
    file = io.StringIO()
    lines = csv.writer(file, delimiter=options.get("fieldDelimiter") or ",", lineterminator="\n")
    if options.get("printHeader", True):
        lines.writerow([one["name"] for one in fields])
    for row in table.to_pylist():
        cells = (exported(row[one["name"]], one) for one in fields)
        lines.writerow([str(value).lower() if isinstance(value, bool) else value for value in cells])
    return file.getvalue().encode()


def _write_parquet(table: Any, fields: Sequence[Field], options: Mapping[str, Any]) -> bytes:
    import pyarrow.parquet as pq

    file = io.BytesIO()
    pq.write_table(table, file)
    return file.getvalue()


def _write_avro(table: Any, fields: Sequence[Field], options: Mapping[str, Any]) -> bytes:
    import fastavro

    file = io.BytesIO()
    schema = {"type": "record", "name": "Root", "fields": [_avro_field(one) for one in fields]}
    rows = [{one["name"]: _avro_value(row[one["name"]], one) for one in fields} for row in table.to_pylist()]
    codec = "deflate" if options.get("compression") == "DEFLATE" else "null"
    fastavro.writer(file, fastavro.parse_schema(schema), rows, codec=codec)
    return file.getvalue()


def _avro_field(one: Field, path: str = "") -> dict[str, Any]:
    kind: Any = _AVRO.get(type_of(one), "string")
    if type_of(one) == "RECORD":
        # A name of a record may occur once in a schema.
        inside = f"{path}_{one['name']}"
        kind = {
            "type": "record",
            "name": f"R{inside}",
            "fields": [_avro_field(child, inside) for child in one["fields"]],
        }
    if is_repeated(one):
        return {"name": one["name"], "type": {"type": "array", "items": kind}}
    is_required = str(one.get("mode", "")).upper() == "REQUIRED"
    return {"name": one["name"], "type": kind if is_required else ["null", kind]}


def _avro_value(value: Any, one: Field) -> Any:
    if is_repeated(one):
        return [_avro_value(item, {**one, "mode": "NULLABLE"}) for item in value or ()]
    if value is None:
        return None
    if type_of(one) == "RECORD":
        return {child["name"]: _avro_value(value[child["name"]], child) for child in one["fields"]}
    return value.isoformat() if type_of(one) == "DATETIME" else value
