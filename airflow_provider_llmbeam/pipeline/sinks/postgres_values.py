"""Records as columns of PostgreSQL."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from airflow_provider_llmbeam.pipeline.columns import OutputColumns
from airflow_provider_llmbeam.pipeline.elements import Row
from airflow_provider_llmbeam.pipeline.sinks import key_types
from airflow_provider_llmbeam.pipeline.sinks.key_types import KeyTypes
from airflow_provider_llmbeam.pipeline.staged_bytes import bytes_of, without_bytes

_TYPES = {"bytes": "text", "boolean": "boolean", "integer": "bigint", "number": "double precision", "text": "text"}
#: Types of a new table; `answer` may be `jsonb` instead.
OUTPUT_TYPES = {column: _TYPES[kind] for column, kind in key_types.OUTPUT_TYPES.items()}

_JSON = ("json", "jsonb")
_INTEGERS = frozenset({"smallint", "integer", "bigint"})
#: First words of further types without an empty text.
_NO_TEXTS = frozenset({"numeric", "real", "double", "boolean", "date", "time", "timestamp", "interval", "uuid"})

#: Categories of types without an empty text, such as enums (E), addresses of networks (I) and ranges (R). Source:
#: postgresql.org/docs, table "typcategory Codes".
NO_EMPTY_TEXT = frozenset("BCDEGINRT")

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
#: NUL in JSON; after an even number of backslashes, as it is text otherwise.
_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")


def types_of(columns: OutputColumns, records: Iterable[Row]) -> dict[str, str] | None:
    """Derives the types of a new table from the records; `None` without records.

    Args:
        columns: The columns.
        records: The records.
    """
    types, structured, count = KeyTypes(columns.from_source), True, 0
    for record in records:
        types.add(record)
        structured = structured and not isinstance(record["answer"], str)
        count += 1
    if not count:
        return None
    keys = {column: _TYPES[found] for column, found in types.types().items()}
    outputs = {name: OUTPUT_TYPES[name] for name in columns.outputs}
    return keys | outputs | ({"answer": "jsonb"} if structured else {})


def encoder_of(type_: str, *, is_key: bool = False, is_filled: bool = False) -> Callable[[Any], str | None]:
    """Returns the function that encodes values for a column.

    Args:
        type_: Type of the column, as PostgreSQL formats it.
        is_key: Whether it is a key column, which has no nulls: an empty text stays one there.
        is_filled: Whether no value of the type is an empty text, see `NO_EMPTY_TEXT`.
    """
    if type_ == "bytea":
        return _as_bytea
    encode = _encoder_of(type_, is_key=is_key, is_filled=is_filled)
    return lambda value: encode(without_bytes(value))


def _encoder_of(type_: str, *, is_key: bool, is_filled: bool) -> Callable[[Any], str | None]:
    if type_.endswith("[]"):
        return partial(_as_array, element=encoder_of(type_.removesuffix("[]")))
    if type_ in _JSON:
        return as_json
    name = type_.partition("(")[0].partition(" ")[0]
    if name in _INTEGERS:
        return partial(_as_other, is_key=is_key, is_integer=True)
    return partial(_as_other, is_key=is_key) if is_filled or name in _NO_TEXTS else as_text


def _as_bytea(value: Any) -> str | None:
    """Encodes bytes; any other value is text in the syntax of the type."""
    content = bytes_of(value)
    return as_text(value) if content is None else f"\\x{content.hex()}"


def _as_other(value: Any, *, is_key: bool, is_integer: bool = False) -> str | None:
    """Encodes a value for a type that no empty text belongs to, which is what CSV has for no value."""
    if value == "" and not is_key:
        return None
    # An integer column with nulls is one of doubles for pandas, and for what it writes.
    return str(int(value)) if is_integer and isinstance(value, float) and value.is_integer() else as_text(value)


def _as_array(value: Any, element: Callable[[Any], str | None]) -> str | None:
    """Encodes a list for a column of arrays; a text is its literal already."""
    if not isinstance(value, list):
        return None if value == "" else as_text(value)
    return f"{{{','.join(_as_element(each, element) for each in value)}}}"


def _as_element(value: Any, element: Callable[[Any], str | None]) -> str:
    if isinstance(value, list):
        return str(_as_array(value, element))
    text = element(value)
    return "NULL" if text is None else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def as_text(value: Any) -> str | None:
    """Encodes a value for a column of texts."""
    if value is None:
        return None
    if isinstance(value, float):  # also NaN and infinity, which PostgreSQL has and JSON has not
        return repr(value)
    return _clean(value if isinstance(value, str) else _to_json(value))


def as_json(value: Any) -> str | None:
    """Encodes a value for a JSON column."""
    if value is None:
        return None
    text = _to_json(value)
    return _clean(_NUL.sub("\\1\ufffd", text) if "\\u0000" in text else text)


def _to_json(value: Any) -> str:
    try:
        return _encode(value)
    except ValueError:  # 1e999 is valid JSON, but infinite in Python, which JSON cannot represent
        return _encode(json.loads(json.dumps(value), parse_constant=lambda _: None))


def _clean(text: str) -> str:
    """Replaces characters that PostgreSQL cannot store: NUL, and half of a surrogate pair."""
    if text.isascii():
        return text.replace("\0", "\ufffd")
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
