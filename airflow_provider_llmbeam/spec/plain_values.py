"""Values of rows, of whatever library, as values that templates and JSON have. Imports none of the libraries."""

from __future__ import annotations

import math
from datetime import date, datetime
from decimal import Decimal
from types import NoneType
from typing import Any

#: The texts of infinite numbers in JSON, which has no others: of the negative one, and of the positive one.
INFINITE = ("-Infinity", "Infinity")

_PLAIN = frozenset({str, int, bool, NoneType, bytes, date, datetime})
_LIBRARIES = frozenset({"numpy", "pandas", "apache_beam"})
#: Names of the types of missing values: those of pandas, whose `NA` has no truth.
_MISSING = frozenset({"NaTType", "NAType"})


def plain_row(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row with plain values; the row itself if it has no others."""
    if _PLAIN.issuperset(map(type, row.values())):
        return row
    plain: dict[str, Any] = plain_value(row)
    return plain


def plain_value(value: Any) -> Any:
    """Returns a value of Python for one of numpy, pandas or Beam; no number and no time are `None`.

    A time with nanoseconds is text in ISO 8601, as Python's own has none. Infinity stays a number.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is float:
        return None if math.isnan(value) else value
    if kind is Decimal:
        return None if value.is_nan() else value
    if isinstance(value, dict):
        found = {name: plain_value(inner) for name, inner in value.items()}
        return found if any(found[name] is not inner for name, inner in value.items()) else value
    if kind is list or kind is tuple:
        parts = [*map(plain_value, value)]
        return kind(parts) if any(map(_differ, parts, value)) else value
    return _of_library(value) if kind.__module__.partition(".")[0] in _LIBRARIES else value


def _of_library(value: Any) -> Any:
    name = type(value).__name__
    if name in _MISSING:
        return None
    if name in ("datetime64", "timedelta64"):
        return None if str(value) == "NaT" else str(value)
    if hasattr(value, "to_pydatetime"):
        return value.isoformat() if value.nanosecond else value.to_pydatetime()
    if hasattr(value, "to_pytimedelta"):
        return value.to_pytimedelta()
    if hasattr(value, "to_utc_datetime"):
        return value.to_utc_datetime(has_tz=True)
    return plain_value(value.tolist()) if hasattr(value, "tolist") else value


def _differ(plain: Any, value: Any) -> bool:
    return plain is not value
