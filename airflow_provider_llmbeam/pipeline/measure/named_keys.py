"""Keys of rows as a user names them, e.g. on the command line."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
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
        columns: Key columns of the rows.
    """

    def __init__(self, named: Sequence[str], columns: tuple[str, ...]) -> None:
        self._named = tuple(named)
        self._columns = columns
        self._values = {each: values for each in named if (values := _values(each, columns)) is not None}
        self._by_texts = {tuple(map(str, values)): each for each, values in self._values.items()}
        self._found: set[tuple[str, ...]] = set()

    @property
    def unfound(self) -> tuple[str, ...]:
        """The named keys that no row has had so far."""
        found = {each for each, values in self._values.items() if tuple(map(str, values)) in self._found}
        return tuple(each for each in self._named if each not in found)

    def of_row(self, row: Mapping[str, Any]) -> str | None:
        """Returns the named key that a row has; `None` for another row."""
        values = [row.get(column) for column in self._columns]
        if any(value is None for value in values):
            return None
        found = [texts for texts in itertools.product(*map(_texts, values)) if texts in self._by_texts]
        self._found.update(found)
        return self._by_texts[found[0]] if found else None

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yields them as rows: what is derived from them depends on the type, and a named key has none."""
        for values in self._values.values():
            yield dict(zip(self._columns, values, strict=True))
            if len(values) == 1 and not isinstance(value := _read_json(values[0]), str):
                yield {self._columns[0]: value}

    def rows_and_floats(self) -> Iterator[dict[str, Any]]:
        """Yields them as rows, and an integer also as the float."""
        for row in self.rows():
            yield row
            for name, value in row.items():
                if len(row) == 1 and type(value) is int and abs(value) <= _MAX_EXACT:
                    yield {name: float(value)}

    def texts(self) -> Iterator[tuple[str, ...]]:
        """Yields the text of each column of each of them."""
        yield from self._by_texts


def _values(named: str, columns: tuple[str, ...]) -> list[Any] | None:
    """Returns the values of a named key; `None` for one that has other columns, or none in one."""
    found = _read_json(named)
    if isinstance(found, dict) and found.keys() == {*columns}:
        found = [found[column] for column in columns]
        if len(columns) == 1:
            return [found[0] if isinstance(found[0], str) else json.dumps(found[0])]
    if len(columns) == 1:
        return [named]
    return found if isinstance(found, list) and len(found) == len(columns) and None not in found else None


def _texts(value: Any) -> tuple[str, ...]:
    """Returns the texts by which a value is named: `1` and `1.0` for a whole number."""
    if type(value) is int:
        return str(value), f"{value}.0"
    if type(value) is float and value.is_integer():
        return str(int(value)), str(value)
    return (str(value),)


def _read_json(text: str) -> Any:
    """Returns the value of JSON; a text that is none as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text
