"""Records of output rows and of the dead letter, and their encoding."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from operator import attrgetter
from typing import Any

import orjson

from airflow_provider_llmbeam.engine.outcome import Completion
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.columns import OutputColumns
from airflow_provider_llmbeam.pipeline.elements import (
    MODERATION_COLUMNS,
    AnsweredRow,
    FailedRow,
    Row,
)
from airflow_provider_llmbeam.pipeline.staged_bytes import staged_bytes
from airflow_provider_llmbeam.spec.characters import valid_text
from airflow_provider_llmbeam.spec.plain_values import INFINITE
from airflow_provider_llmbeam.spec.typed_values import BinaryText, restore_types, text_of, types_of

_to_json = json.JSONEncoder(ensure_ascii=False, default=text_of, allow_nan=False).encode
_to_compact_json = json.JSONEncoder(
    ensure_ascii=False, default=text_of, separators=(",", ":"), allow_nan=False
).encode
_log = logging.getLogger("llmbeam")
_ORJSON = orjson.OPT_APPEND_NEWLINE | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS
_ANSWERED_BY = "llmbeam_answered_by"

#: The values of the columns `llmbeam_…`.
_DETAILS: dict[str, Callable[[AnsweredRow], Any]] = {
    **{
        f"llmbeam_{name}": attrgetter(name)
        for name in ("origin", "fingerprint", *MODERATION_COLUMNS, "answered_by")
    },
    **{
        f"llmbeam_{name}": attrgetter(f"completion.{name}")
        for name in ("model", "finish_reason", "attempts", "citations", "mean_logprob", "reasoning")
    },
    **{f"llmbeam_{name}_tokens": attrgetter(f"completion.tokens.{name}") for name in ("input", "output")},
    "llmbeam_latency_seconds": lambda answered: round(answered.completion.latency_seconds, 4),
}


def answer_record(answered: AnsweredRow, columns: OutputColumns) -> Row:
    """Returns the output row: the key, the passthrough columns, the answer, and what is known of it."""
    completion, row = answered.completion, answered.row
    record = {column: row[column] for column in columns.key}
    for column in columns.passthrough:
        record[column] = value = row.get(column)
        if columns.keeps_bytes and isinstance(value, bytes | BinaryText):
            record[column] = staged_bytes(value)
    columns.add_answer(record, answer_value(completion, has_schema=columns.answer is not None))
    for name in columns.after_answer:
        record[name] = _DETAILS[name](answered)
    if _ANSWERED_BY in columns.after_answer:
        record[_ANSWERED_BY] = answered.answered_by or columns.model
    return record


def answer_value(completion: Completion, *, has_schema: bool) -> Any:
    """Returns the JSON value of an answer with a schema, which may be null, and the text of any other."""
    is_null = has_schema and completion.text.strip() == "null"
    return completion.text if completion.parsed is None and not is_null else completion.parsed


def failed_record(failed: FailedRow) -> Row:
    """Returns the row as read, so that a source can read it again, and the reason of its failure.

    It names the types of columns that JSON does not have, see `with_types`.
    """
    failure = failed.failure
    error = {
        "kind": failure.kind,
        "message": failure.message,
        "category": failure.category,
        "http_status": failure.http_status,
        "request_id": failure.request_id,
        "attempts": failure.attempts,
        "origin": failed.origin,
    }
    if types := types_of({name: value for name, value in failed.row.items() if name != "llmbeam_error"}):
        error["types"] = types
    if failure_of(failed.row) is None and "llmbeam_error" in failed.row:
        warn_of_replaced("llmbeam_error")
    return {**failed.row, "llmbeam_error": error}


@cache
def warn_of_replaced(column: str) -> None:
    """Logs once per process that a column of the source has a name that the dead letter uses."""
    _log.warning(
        "Rows of the source have a column %r that no job wrote. It is data like any other; in the dead letter the "
        "job's own column of this name is in its place.",
        column,
    )


def failure_of(row: Row) -> dict[str, Any] | None:
    """Returns the reason for which a row is in a dead letter; `None` if no job wrote what the row has."""
    error = row.get("llmbeam_error")
    return error if isinstance(error, dict) and isinstance(error.get("kind"), str) else None


def with_types(row: Row) -> Row:
    """Returns a row of a dead letter with the values of its first source; JSON has dates and bytes as texts."""
    types = (failure_of(row) or {}).get("types")
    if not isinstance(types, dict):
        return row
    return {name: restore_types(value, types.get(name)) for name, value in row.items()}


def encode_record(record: Row) -> bytes:
    """Encodes a record as one JSON line; values without a JSON type (dates, decimals) become text, bytes base64.

    Half of a surrogate pair, which an answer may have, becomes U+FFFD: other readers accept valid UTF-8 only.
    """
    try:
        line = orjson.dumps(record, option=_ORJSON)  # 0.4 us where `json` takes 4
        if b"null" not in line:  # which it also writes for NaN and infinity
            return line
    except TypeError:  # a value without a JSON type, half of a surrogate pair, or an integer of more than 64 bits
        pass
    return _line(_to_compact_json, record)


def _line(encode: Callable[[Any], str], record: Row) -> bytes:
    try:
        text = encode(record)
    except ValueError:
        text = encode(_finite(record))
    return valid_text(text).encode() + b"\n"


def _finite(value: Any) -> Any:
    """Returns a value with null for no number, and with texts for the infinite ones, as JSON has neither."""
    match value:
        case float() if not math.isfinite(value):
            return None if math.isnan(value) else INFINITE[value > 0]
        case dict():
            return {name: _finite(inner) for name, inner in value.items()}
        case list() | tuple():
            return [*map(_finite, value)]
        case _:
            return value


def encode_key(row: Row, key: tuple[str, ...]) -> bytes:
    """Encodes the key of a row as one JSON line: equal keys give equal lines.

    Identifiers in vector databases are digests of it, so it never changes, nor do the blanks in it.
    """
    parts = []
    for column, name in _names(key):
        value = row[column]
        if type(value) is str:
            parts.append(name + _to_json(value))
        elif type(value) is int:
            parts.append(f"{name}{value}")
        else:
            return _line(_to_json, {column: row[column] for column in key})
    # A sixth of the time of `json`, which makes an encoder for each mapping.
    return valid_text(f"{{{', '.join(parts)}}}\n").encode()


def encode_text(value: Any) -> bytes | None:
    """Encodes the value of a column as the text that is the key of a message; null is none."""
    return None if value is None else valid_text(str(value)).encode()


def encode_equal_key(row: Row, key: tuple[str, ...]) -> bytes:
    """Encodes the key of a row as `encode_key` does, with its `whole` numbers as integers."""
    return encode_key({column: whole(row[column]) for column in key}, key)


def whole(value: Any) -> Any:
    """Returns a value, a whole number of type float as the integer.

    pandas writes integers of a column with nulls as floats: one file may have the key 17.0, and another one 17.
    """
    return int(value) if isinstance(value, float) and value.is_integer() else value


@cache
def _names(key: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Returns the columns of a key, and each of them as JSON with what follows it."""
    return tuple((column, f"{_to_json(column)}: ") for column in dict.fromkeys(key))


def read_records(staged: Mapping[int, str]) -> Iterator[Row]:
    """Reads the records of staged JSON lines, one file after the other."""
    for _, uri in sorted(staged.items()):
        with storage.open_buffered(uri) as file:
            yield from map(json.loads, file)
