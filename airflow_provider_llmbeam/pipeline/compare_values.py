"""Compares values of answers as texts and as numbers. Pure."""

from __future__ import annotations

import json
import math
import unicodedata
from typing import Any

from airflow_provider_llmbeam.spec.answer_comparison import NumericComparison

#: Largest integer up to which each one is a float.
_MAX_EXACT = 2**53


def normalise(value: Any, *, ignore_case: bool = False, ignore_whitespace: bool = False) -> str:
    """Returns the text of a value; one that is no text becomes JSON, as the cell of a CSV file would hold it.

    A letter with an accent is one character, where it may also be written as two (Unicode's NFC).
    """
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
    text = unicodedata.normalize("NFC", text)
    if ignore_whitespace:
        text = " ".join(text.split())
    return text.casefold() if ignore_case else text


def make_comparable(one: Any, other: Any) -> tuple[Any, Any]:
    """Returns two values as they are compared: whole numbers are equal, written `1` or `1.0`.

    A text stays as it is, and a number that is compared with one that has a point, as in a CSV file.
    """

    def beside(value: Any, other: Any) -> Any:
        return (
            value if isinstance(value, str) or (isinstance(other, str) and "." in other) else use_integers(value)
        )

    return beside(one, other), beside(other, one)


def use_integers(value: Any) -> Any:
    """Returns a value whose numbers without a fraction are integers: 4 for 4.0, but `True` for `True`."""
    match value:
        case float() if value.is_integer() and abs(value) <= _MAX_EXACT:
            return int(value)
        case dict():
            return {name: use_integers(inner) for name, inner in value.items()}
        case list() | tuple():
            return [*map(use_integers, value)]
    return value


def is_near(answer: Any, expected: Any, tolerances: NumericComparison) -> bool:
    """Whether two numbers differ by at most the larger tolerance; other values never do."""
    found, wanted = number_of(answer), number_of(expected)
    if found is None or wanted is None:
        return False
    tolerance = max(tolerances.absolute_tolerance, tolerances.relative_tolerance * abs(wanted))
    # 0.4 - 0.3 is more than 0.1 by the rounding of each number.
    rounding = 2 * math.ulp(max(abs(found), abs(wanted), tolerance)) if tolerance else 0.0
    return abs(found - wanted) <= tolerance + rounding


def number_of(value: Any) -> float | None:
    """Returns a number, or the number that a text is; `None` for other values."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
