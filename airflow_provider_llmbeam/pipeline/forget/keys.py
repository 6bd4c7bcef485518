"""Keys as they are named on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any


def key_text(row: Mapping[str, Any], key: tuple[str, ...]) -> str | None:
    """Returns the key of a row as text: its value, or the JSON list of several ones; `None` for a row without."""
    values = [row.get(column) for column in key]
    if any(value is None for value in values):
        return None
    return str(values[0]) if len(values) == 1 else json.dumps(values, default=str)


def named_keys(keys: Iterable[str], key: tuple[str, ...]) -> frozenset[str]:
    """Returns keys that a user has named as `key_text` writes them."""
    return frozenset(named if len(key) == 1 else json.dumps(_json(named)) for named in keys)


def key_values(named: str, key: tuple[str, ...]) -> list[str]:
    """Returns the text of each column of a named key; an empty text for one that is missing."""
    values = [named] if len(key) == 1 else _json(named)
    values = values if isinstance(values, list) else [values]
    return [str(value) for value in (*values, *[""] * len(key))][: len(key)]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
