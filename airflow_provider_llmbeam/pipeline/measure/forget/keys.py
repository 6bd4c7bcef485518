"""Keys as they are named on the command line."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

#: Largest integer up to which each one is a float.
_MAX_EXACT = 2**53


class NamedKeys:
    """Keys that a user has named: each as the value of the key column, or as the JSON list of several ones.

    Each may also be the JSON object of all key columns, as a preview shows it. A whole number names an integer and
    a float: pandas reads integers of a column with nulls as floats. A number in JSON also names its text, which is
    what a Parquet file of mixed keys has.

    Args:
        named: The keys.
        key: Key columns of the rows.
    """

    def __init__(self, named: Sequence[str], key: tuple[str, ...]) -> None:
        self._key = key
        self._by_texts = {texts: each for each in named if (texts := _named_texts(each, key)) is not None}
        self._named = tuple(named)
        self._found: set[tuple[str, ...]] = set()

    @property
    def unfound(self) -> tuple[str, ...]:
        """The named keys that no row has had so far."""
        return tuple(each for each in self._named if _named_texts(each, self._key) not in self._found)

    def of_row(self, row: Mapping[str, Any]) -> str | None:
        """Returns the named key that a row has; `None` for another row."""
        values = [row.get(column) for column in self._key]
        if any(value is None for value in values):
            return None
        found = [texts for texts in itertools.product(*map(_texts, values)) if texts in self._by_texts]
        self._found.update(found)
        return self._by_texts[found[0]] if found else None

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yields them as rows, see `typed_rows`, and an integer also as the float."""
        for row in typed_rows(self._key, self._named):
            yield row
            value = row[self._key[0]]
            if len(row) == 1 and type(value) is int and abs(value) <= _MAX_EXACT:
                yield {self._key[0]: float(value)}


def key_values(named: str, key: tuple[str, ...]) -> list[str]:
    """Returns the text of each column of a named key; an empty text for one that is missing."""
    return [str(value) for value in _values(named, key)]


def typed_rows(key: tuple[str, ...], keys: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yields keys as rows: what is derived from them depends on the type, and a named key has none."""
    for named in (_plain(each, key) for each in keys):
        yield dict(zip(key, _values(named, key), strict=True))
        if len(key) == 1 and not isinstance(value := _json(named), str):
            yield {key[0]: value}


def _plain(named: str, key: tuple[str, ...]) -> str:
    """Returns a key that is named by a JSON object as its value, or as the JSON list of its values."""
    found = _json(named)
    if not isinstance(found, dict) or found.keys() != {*key}:
        return named
    values = [found[column] for column in key]
    if len(values) == 1 and isinstance(values[0], str):
        return values[0]
    return json.dumps(values[0] if len(values) == 1 else values)


def _named_texts(named: str, key: tuple[str, ...]) -> tuple[str, ...] | None:
    """Returns the text of each column of a named key; `None` for one that has other columns, or none in one."""
    named = _plain(named, key)
    values = [named] if len(key) == 1 else _json(named)
    if not isinstance(values, list) or len(values) != len(key) or None in values:
        return None
    return tuple(map(str, values))


def _texts(value: Any) -> tuple[str, ...]:
    """Returns the texts by which a value is named: `1` and `1.0` for a whole number."""
    if type(value) is int:
        return str(value), f"{value}.0"
    if type(value) is float and value.is_integer():
        return str(int(value)), str(value)
    return (str(value),)


def _values(named: str, key: tuple[str, ...]) -> list[Any]:
    named = _plain(named, key)
    values = [named] if len(key) == 1 else _json(named)
    return [*(values if isinstance(values, list) else [values]), *[""] * len(key)][: len(key)]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
