"""Names of conversations and of their turns, and the order of the turns. Pure."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from airflow_provider_llmbeam.pipeline.elements import Row
from airflow_provider_llmbeam.pipeline.privacy.placeholder import placeholders_in
from airflow_provider_llmbeam.pipeline.records import encode_equal_key, encode_key
from airflow_provider_llmbeam.spec.conversation import Conversation

#: Position of a turn, as JSON keeps it: its value of `order_by`, and the values of its key.
Position = tuple[int | float | str, ...]

_NUMBER = re.compile(r"[+-]?\d{1,40}(\.\d{1,40})?")


def conversation_of(row: Row, conversation: Conversation) -> str:
    """Returns the name of the conversation of a row: 32 hexadecimal digits; 17.0 names the same as 17."""
    return hashlib.sha256(encode_equal_key(row, conversation.key)).hexdigest()[:32]


def turn_name(row: Row, key: tuple[str, ...]) -> str:
    """Returns the name of the turn of a row: its key as JSON."""
    return encode_key(row, key).decode().strip()


def position_of(row: Row, conversation: Conversation, key: tuple[str, ...]) -> Position:
    """Returns the position of a row in its conversation; equal ones are those of one row."""
    by = () if conversation.order_by is None else (conversation.order_by,)
    return tuple(_plain(row[column]) for column in (*by, *key))


def in_order(position: Sequence[int | float | str]) -> tuple[tuple[int, Any], ...]:
    """Returns what positions are sorted by: numbers, also those in texts, come before other texts."""
    return tuple(_comparable(value) for value in position)


def fault_of(row: Row, conversation: Conversation, key: tuple[str, ...]) -> str | None:
    """Returns why a row is no turn of a conversation, or `None`."""
    by = conversation.order_by
    named = [(column, "key") for column in conversation.key]
    for column, field in [*named, (by, "order_by")] if by is not None else named:
        if _is_missing(row.get(column)):
            return f"`{field}`: no value in column {column!r}; the row has {sorted(row)}"
    if by is not None:
        value = row[by]
        is_ordered = isinstance(value, int | float | str | Decimal | date) and not isinstance(value, bool)
        if not is_ordered or (isinstance(value, float) and not math.isfinite(value)):
            return f"`order_by`: no number, text or time in column {by!r} but {value!r}"
    for column in key if by is None else (by,):
        if isinstance(row[column], str) and any(placeholders_in(row[column])):
            return (
                f"the value of column {column!r} orders the conversation, and was masked as personal data: name "
                "the columns to mask in `safety.privacy.columns`, or another column in `conversation.order_by`"
            )
    return None


def _is_missing(value: Any) -> bool:
    """Returns whether a value is none: an empty cell of a CSV file is an empty text, and one of pandas is NaN.

    Such rows are of nobody in particular. With one conversation for all of them, a person's messages would be sent
    as the history of another one.
    """
    if isinstance(value, str):
        return not value.strip()
    return value is None or (isinstance(value, float) and math.isnan(value))


def _plain(value: Any) -> int | float | str:
    if isinstance(value, str) or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    if isinstance(value, datetime):
        at: datetime = value
        with suppress(OverflowError):  # of the years 1 and 9999
            at = at if at.tzinfo is None else at.astimezone(UTC)
        return at.isoformat(timespec="microseconds")
    if isinstance(value, date | Decimal):
        return str(value)
    return json.dumps(value, ensure_ascii=False, default=str)


def _comparable(value: int | float | str) -> tuple[int, Any]:
    if not isinstance(value, str):
        return 0, value
    return (0, Decimal(value)) if _NUMBER.fullmatch(value) else (1, value)
