"""Columns of BigQuery: their types and values in DuckDB, Arrow and JSON."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

Field = Mapping[str, Any]
"""A field of a schema in the API: `name`, `type`, `mode`, `fields`."""
TimestampFormat = Literal["seconds", "microseconds", "iso"]

_ALIASES = {
    "INT64": "INTEGER",
    "FLOAT64": "FLOAT",
    "BOOL": "BOOLEAN",
    "STRUCT": "RECORD",
    "DECIMAL": "NUMERIC",
    "BIGDECIMAL": "BIGNUMERIC",
}
_DUCKDB = {
    "STRING": "VARCHAR",
    "BYTES": "BLOB",
    "INTEGER": "BIGINT",
    "FLOAT": "DOUBLE",
    "NUMERIC": "DECIMAL(38, 9)",
    "BIGNUMERIC": "DECIMAL(38, 18)",
    "BOOLEAN": "BOOLEAN",
    "TIMESTAMP": "TIMESTAMPTZ",
    "DATE": "DATE",
    "TIME": "TIME",
    "DATETIME": "TIMESTAMP",
    "JSON": "JSON",
    "GEOGRAPHY": "VARCHAR",
}
_FROM_DUCKDB = {
    "blob": "BYTES",
    "boolean": "BOOLEAN",
    "date": "DATE",
    "decimal": "NUMERIC",
    "double": "FLOAT",
    "float": "FLOAT",
    "time": "TIME",
    "timestamp": "DATETIME",
    "timestamp with time zone": "TIMESTAMP",
    "uuid": "STRING",
    "varchar": "STRING",
}
_ARROW = {"STRING": "string", "BYTES": "binary", "INTEGER": "int64", "FLOAT": "float64", "BOOLEAN": "bool_"}


def type_of(field: Field) -> str:
    """Returns the type, by its older name: INTEGER, FLOAT, BOOLEAN, RECORD."""
    name = str(field["type"]).upper()
    return _ALIASES.get(name, name)


def is_repeated(field: Field) -> bool:
    """Returns whether the field holds a list."""
    return str(field.get("mode", "")).upper() == "REPEATED"


def quoted(name: str) -> str:
    """Returns a name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def duckdb_type(field: Field) -> str:
    """Returns the type of a field in DuckDB.

    Raises:
        ValueError: The type is unknown.
    """
    name = type_of(field)
    if name == "RECORD":
        inner = ", ".join(f"{quoted(child['name'])} {duckdb_type(child)}" for child in field["fields"])
        text = f"STRUCT({inner})"
    elif name in _DUCKDB:
        text = _DUCKDB[name]
    else:
        raise ValueError(f"Invalid value for type: {field['type']} is not a valid value")
    return f"{text}[]" if is_repeated(field) else text


def field_of(name: str, kind: Any) -> dict[str, Any]:
    """Returns the field of a column of a DuckDB result; `kind` is a `DuckDBPyType`."""
    if kind.id in ("list", "array"):
        return {**field_of(name, kind.children[0][1]), "mode": "REPEATED"}
    if kind.id == "struct":
        children = [field_of(child, inner) for child, inner in kind.children]
        return {"name": name, "type": "RECORD", "mode": "NULLABLE", "fields": children}
    text = "JSON" if str(kind) == "JSON" else _FROM_DUCKDB.get(kind.id, "INTEGER")
    return {"name": name, "type": text, "mode": "NULLABLE"}


def arrow_schema(fields: Sequence[Field]) -> Any:
    """Returns the Arrow schema of `parsed` rows."""
    import pyarrow as pa

    return pa.schema([(field["name"], _arrow_type(field)) for field in fields])


def _arrow_type(field: Field) -> Any:
    import pyarrow as pa

    name = type_of(field)
    inner: Any
    match name:
        case "RECORD":
            inner = pa.struct([(child["name"], _arrow_type(child)) for child in field["fields"]])
        case "NUMERIC":
            inner = pa.decimal128(38, 9)
        case "BIGNUMERIC":
            inner = pa.decimal128(38, 18)
        case "TIMESTAMP":
            inner = pa.timestamp("us", tz="UTC")
        case "DATETIME":
            inner = pa.timestamp("us")
        case "DATE":
            inner = pa.date32()
        case "TIME":
            inner = pa.time64("us")
        case _:
            inner = getattr(pa, _ARROW.get(name, "string"))()
    return pa.list_(inner) if is_repeated(field) else inner


def parsed(value: Any, field: Field) -> Any:
    """Returns a value from JSON, CSV or Avro in the type that Arrow accepts.

    Raises:
        ValueError: It does not fit the field; the message is that of BigQuery.
    """
    if is_repeated(field):
        item = {**field, "mode": "NULLABLE"}
        if value is not None and not isinstance(value, list):
            raise ValueError(f"Array specified for non-repeated field or the reverse: {field['name']}.")
        return [parsed(one, item) for one in value or ()]
    if value is None:
        if str(field.get("mode", "")).upper() == "REQUIRED":
            raise ValueError(f"Missing required field: {field['name']}.")
        return None
    name = type_of(field)
    if name == "RECORD":
        if not isinstance(value, dict):
            raise ValueError(f"Expected an object for field: {field['name']}.")
        return parsed_row(value, field["fields"], prefix=f"{field['name']}.")
    try:
        return _scalar(value, name)
    except (ValueError, TypeError, InvalidOperation) as error:
        word = "integer" if name == "INTEGER" else "double" if name == "FLOAT" else name.lower()
        raise ValueError(f"Could not convert value to {word}. Field: {field['name']}; Value: {value}") from error


def parsed_row(
    row: Mapping[str, Any], fields: Sequence[Field], *, prefix: str = "", ignores_unknown: bool = False
) -> dict[str, Any]:
    """Returns a row in the types that Arrow accepts; raises `ValueError` if it does not fit."""
    unknown = row.keys() - {field["name"] for field in fields}
    if unknown and not ignores_unknown:
        raise ValueError(f"No such field: {prefix}{min(unknown)}.")
    return {field["name"]: parsed(row.get(field["name"]), field) for field in fields}


def _scalar(value: Any, name: str) -> Any:
    match name:
        case "INTEGER":
            if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
                raise ValueError
            return int(value)
        case "FLOAT":
            return float(value)
        case "BOOLEAN":
            text = str(value).lower()
            if text not in ("true", "false"):
                raise ValueError
            return text == "true"
        case "NUMERIC" | "BIGNUMERIC":
            return Decimal(str(value))
        case "BYTES":
            return value if isinstance(value, bytes) else base64.b64decode(value, validate=True)
        case "TIMESTAMP":
            return _timestamp(value)
        case "DATETIME":
            return value if isinstance(value, datetime) else datetime.fromisoformat(value)
        case "DATE":
            return value if isinstance(value, date) else date.fromisoformat(value)
        case "TIME":
            return value if isinstance(value, time) else time.fromisoformat(value)
        case "JSON":
            return value if isinstance(value, str) and _is_json(value) else json.dumps(value)
        case _:
            if isinstance(value, (dict, list)):
                raise TypeError
            return json.dumps(value) if isinstance(value, bool) else str(value)


def _timestamp(value: Any) -> datetime:
    if isinstance(value, datetime):
        found = value
    elif isinstance(value, (int, float)):
        found = datetime.fromtimestamp(value, UTC)
    else:
        found = datetime.fromisoformat(str(value).replace(" UTC", "+00:00"))
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def cell(value: Any, field: Field, timestamps: TimestampFormat) -> dict[str, Any]:
    """Returns a value as in rows of the REST API: everything is text, structs are lists."""
    if is_repeated(field):
        item = {**field, "mode": "NULLABLE"}
        return {"v": [cell(one, item, timestamps) for one in value or ()]}
    if value is None:
        return {"v": None}
    if type_of(field) == "RECORD":
        return {"v": {"f": [cell(value[child["name"]], child, timestamps) for child in field["fields"]]}}
    return {"v": _text(value, type_of(field), timestamps)}


def _text(value: Any, name: str, timestamps: TimestampFormat) -> str:
    match name:
        case "TIMESTAMP" if timestamps == "iso":
            return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")  # type: ignore[no-any-return]
        case "TIMESTAMP":
            microseconds = round(value.timestamp() * 1_000_000)
            return str(microseconds) if timestamps == "microseconds" else repr(microseconds / 1_000_000)
        case "BOOLEAN":
            return "true" if value else "false"
        case "BYTES":
            return base64.b64encode(value).decode()
        case "FLOAT":
            return (
                repr(value)
                if math.isfinite(value)
                else {"nan": "NaN", "inf": "Infinity"}.get(str(value), "-Infinity")
            )
        case "NUMERIC" | "BIGNUMERIC":
            return f"{value.normalize():f}"
        case "DATE" | "TIME" | "DATETIME":
            return value.isoformat()  # type: ignore[no-any-return]
        case _:
            return str(value)


def exported(value: Any, field: Field) -> Any:
    """Returns a value as an export to JSON writes it; INTEGER becomes text, as in the real exports."""
    if is_repeated(field):
        item = {**field, "mode": "NULLABLE"}
        return [exported(one, item) for one in value or ()]
    if value is None:
        return None
    match type_of(field):
        case "RECORD":
            return {child["name"]: exported(value[child["name"]], child) for child in field["fields"]}
        case "BOOLEAN" | "FLOAT":
            return value
        case "TIMESTAMP":
            return f"{value.astimezone(UTC).replace(tzinfo=None).isoformat(sep=' ')} UTC"
        case "JSON":
            return json.loads(value)
        case name:
            return _text(value, name, "iso")


def bytes_sql(field: Field) -> str:
    """Returns the SQL that counts the logical bytes of one column in one row.

    Source: docs.cloud.google.com/bigquery/pricing, "data size calculation"; nested columns by their JSON.
    """
    name, column = type_of(field), quoted(field["name"])
    if is_repeated(field) or name in ("RECORD", "JSON"):
        return f"coalesce(strlen({column}::JSON::VARCHAR), 0)"
    if name in ("STRING", "GEOGRAPHY"):
        return f"coalesce(2 + strlen({column}), 0)"
    if name == "BYTES":
        return f"coalesce(2 + octet_length({column}), 0)"
    size = {"BOOLEAN": 1, "NUMERIC": 16, "BIGNUMERIC": 32}.get(name, 8)
    return f"(CASE WHEN {column} IS NULL THEN 0 ELSE {size} END)"
