"""Keys as they are named on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
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
    return [str(value) for value in _values(named, key)]


def typed_rows(key: tuple[str, ...], keys: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yields keys as rows: what is derived from them depends on the type, and a named key has none."""
    for named in keys:
        yield dict(zip(key, _values(named, key), strict=True))
        if len(key) == 1 and not isinstance(value := _json(named), str):
            yield {key[0]: value}


def _values(named: str, key: tuple[str, ...]) -> list[Any]:
    values = [named] if len(key) == 1 else _json(named)
    return [*(values if isinstance(values, list) else [values]), *[""] * len(key)][: len(key)]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
