"""Records as columns of PostgreSQL."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from airflow_provider_llmbeam.pipeline.columns import OutputColumns
from airflow_provider_llmbeam.pipeline.elements import Row
from airflow_provider_llmbeam.pipeline.sinks import key_types
from airflow_provider_llmbeam.pipeline.sinks.key_types import KeyTypes

_TYPES = {"boolean": "boolean", "integer": "bigint", "number": "double precision", "text": "text"}
#: Types of a new table; `answer` may be `jsonb` instead.
OUTPUT_TYPES = {column: _TYPES[kind] for column, kind in key_types.OUTPUT_TYPES.items()}

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


def as_text(value: Any) -> str | None:
    """Encodes a value for a column of any type except JSON."""
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
