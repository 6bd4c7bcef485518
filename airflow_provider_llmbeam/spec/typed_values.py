"""Values that JSON does not have: each is a text there, with the name of its type beside it."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from airflow_provider_llmbeam.spec.plain_values import INFINITE

#: Exponents of a number that is read from a text: a row could name one of gigabytes.
_MAX_EXPONENT = 1000
#: The text of a `timedelta`, which may be negative: `-1 day, 23:59:59.000001`.
_TIMEDELTA = re.compile(r"(?:(-?\d+) days?, )?(\d+):(\d\d):(\d\d)(?:\.(\d{6}))?")


class BinaryText(str):
    """Text of a column of bytes: a text in prompts and files, and bytes again in a column of bytes."""

    __slots__ = ()


def text_of(value: Any) -> str:
    """Returns the text that stands for a value in JSON: bytes in base64."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def types_of(value: Any) -> Any:
    """Returns the name of the type of a value that JSON does not have, or those in it; `None` for any other."""
    if isinstance(value, dict):
        return {name: found for name, inner in value.items() if (found := types_of(inner))} or None
    if isinstance(value, (list, tuple)):
        found = [*map(types_of, value)]
        return found if any(found) else None
    name = _NAMES.get(type(value))
    if isinstance(value, float) and not math.isfinite(value):
        name = "float"
    zone = getattr(getattr(value, "tzinfo", None), "key", None)
    return f"{name} {zone}" if name and zone else name


def restore_types(value: Any, types: Any) -> Any:
    """Returns a value of JSON with the types that `types_of` has named; what does not fit them stays a text."""
    if isinstance(value, dict) and isinstance(types, dict):
        return {name: restore_types(inner, types.get(name)) for name, inner in value.items()}
    if isinstance(value, list) and isinstance(types, list) and len(value) == len(types):
        return [*map(restore_types, value, types)]
    if isinstance(value, str) and isinstance(types, str):
        name, _, zone = types.partition(" ")
        with suppress(*_NOT_OF_TYPE):
            typed = _OF_TEXT[name](value)
            return typed.astimezone(ZoneInfo(zone)) if zone else typed
    return value


def encode_typed(value: Any) -> str:
    """Returns a value and its types as JSON."""
    return json.dumps([value, types_of(value)], default=text_of)


def decode_typed(text: str) -> Any:
    """Returns the value that `encode_typed` has encoded."""
    return restore_types(*json.loads(text))


def _decimal(text: str) -> Decimal:
    number = Decimal(text)
    if number.is_finite() and abs(number.adjusted()) > _MAX_EXPONENT:
        raise ValueError(text)
    return number


def _timedelta(text: str) -> timedelta:
    if (parts := _TIMEDELTA.fullmatch(text)) is None:
        raise ValueError(text)
    days, hours, minutes, seconds, microseconds = (int(part or 0) for part in parts.groups())
    return timedelta(days, seconds, microseconds, hours=hours, minutes=minutes)


#: How a value is made of its text, by the name of its type.
_OF_TEXT: dict[str, Callable[[str], Any]] = {
    "bytes": partial(base64.b64decode, validate=True),
    "binary_text": BinaryText,
    "date": date.fromisoformat,
    "datetime": datetime.fromisoformat,
    "decimal": _decimal,
    "float": {text: float(text) for text in INFINITE}.__getitem__,
    "time": time.fromisoformat,
    "timedelta": _timedelta,
    "uuid": UUID,
}
_NAMES = {
    bytes: "bytes",
    BinaryText: "binary_text",
    date: "date",
    datetime: "datetime",
    Decimal: "decimal",
    time: "time",
    timedelta: "timedelta",
    UUID: "uuid",
}
#: Errors of a text that is not of its type, or was changed.
_NOT_OF_TYPE = (ValueError, ArithmeticError, LookupError, AttributeError, OSError)
