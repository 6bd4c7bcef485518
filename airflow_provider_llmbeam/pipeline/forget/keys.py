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
    values = [named] if len(key) == 1 else _json(named)
    values = values if isinstance(values, list) else [values]
    return [str(value) for value in (*values, *[""] * len(key))][: len(key)]


def typed_rows(key: tuple[str, ...], keys: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yields keys as rows: what is derived from them depends on the type, and a named key has none."""
    for named in keys:
        if len(key) > 1:
            yield dict(zip(key, json.loads(named), strict=False))
            continue
        yield {key[0]: named}
        try:
            value: Any = json.loads(named)
        except ValueError:
            continue
        if not isinstance(value, str):
            yield {key[0]: value}


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
