"""Tables of texts, as `content:inspect` takes them, and what it found in them. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from airflow_provider_llmbeam.pipeline.privacy.finding import Cell, Finding
from airflow_provider_llmbeam.spec.safety.privacy import DlpDetector, kind_of_info_type
from airflow_provider_llmbeam.transport.server_reply import list_of, mapping_of, str_of

#: Name of the service in messages and replies.
SERVICE = "Sensitive Data Protection"
#: Limits of one request: its size, and the values of its table, also empty ones. The service states "0.5 MB".
#: Source: cloud.google.com/sensitive-data-protection/limits, read in November 2026.
MAX_BYTES, MAX_VALUES = 500_000, 50_000
#: Maximum number of texts in one request. It returns about 3,000 findings, an arbitrary part of all if there are
#: more, and what is sent again then is billed again: so many texts may have three findings each.
MAX_TEXTS = 1_000

#: How sure a finding is by its likelihood; the scores of patterns are between 0.4 and 1.
_SCORES = {"VERY_UNLIKELY": 0.1, "UNLIKELY": 0.3, "POSSIBLE": 0.5, "LIKELY": 0.8, "VERY_LIKELY": 1.0}
#: Halves of surrogate pairs, which UTF-8 cannot encode. Each is replaced by one character, so that ranges hold.
_LONE_HALF = re.compile("[\ud800-\udfff]")
_EMPTY: dict[str, str] = {}


@dataclass(frozen=True)
class Table:
    """Texts that are inspected in one request; each column has its own, from the first row on."""

    cells: tuple[Cell, ...]

    @cached_property
    def columns(self) -> dict[str, list[Cell]]:
        """The texts by column."""
        columns: dict[str, list[Cell]] = {}
        for cell in self.cells:
            columns.setdefault(cell.column, []).append(cell)
        return columns

    @property
    def text_bytes(self) -> int:
        """Size of the texts in bytes, by which the service bills."""
        return sum(len(_sendable(cell.text).encode()) for cell in self.cells)

    def halves(self) -> tuple[Table, Table]:
        """Returns two tables with half of the texts each."""
        middle = len(self.cells) // 2
        return Table(self.cells[:middle]), Table(self.cells[middle:])

    def encode_body(self, config: Mapping[str, Any]) -> str:
        """Returns the body of the request.

        Args:
            config: The `inspectConfig`, see `config_of`.
        """
        columns = list(self.columns.values())
        rows = [
            {"values": [_value(texts[index]) if index < len(texts) else _EMPTY for texts in columns]}
            for index in range(max(map(len, columns), default=0))
        ]
        table = {"headers": [{"name": _sendable(name)} for name in self.columns], "rows": rows}
        return _json({"item": {"table": table}, "inspectConfig": config})


def config_of(detector: DlpDetector) -> dict[str, Any]:
    """Returns the `inspectConfig` of a detector. Without quotes, no reply holds a value."""
    return {
        "infoTypes": [{"name": name} for name in detector.info_types],
        "minLikelihood": detector.min_likelihood,
        "includeQuote": False,
    }


def pack(cells: Iterable[Cell], config: Mapping[str, Any]) -> tuple[list[Table], list[Cell]]:
    """Divides texts into tables within the limits of a request, each text into one.

    Args:
        cells: The texts.
        config: See `Table.encode_body`.

    Returns:
        The tables, and the texts that are too long for a request.
    """
    tables: list[Table] = []
    too_long: list[Cell] = []
    fixed_bytes = len(Table(()).encode_body(config).encode())
    filled = _Filled(fixed_bytes)
    for cell in cells:
        if not filled.takes(cell):
            if filled.cells:
                tables.append(Table(tuple(filled.cells)))
                filled = _Filled(fixed_bytes)
            if not filled.takes(cell):
                too_long.append(cell)
                continue
        filled.add(cell)
    if filled.cells:
        tables.append(Table(tuple(filled.cells)))
    return tables, too_long


class _Filled:
    """A table that is being filled, and the size of its request."""

    def __init__(self, fixed_bytes: int) -> None:
        self.cells: list[Cell] = []
        self._fixed_bytes = fixed_bytes
        self._lengths: dict[str, int] = {}
        self._rows = 0

    def takes(self, cell: Cell) -> bool:
        """Whether the limits allow one more text."""
        length = self._lengths.get(cell.column, 0)
        columns, rows = len(self._lengths) + (not length), max(self._rows, length + 1)
        size = self._fixed_bytes + self._size(cell)
        # Each row has braces and a name; each value a comma, and two braces even if it is empty.
        size += rows * len('{"values":[]},') + rows * columns * len("{},")
        return len(self.cells) < MAX_TEXTS and rows * columns <= MAX_VALUES and size <= MAX_BYTES

    def add(self, cell: Cell) -> None:
        """Adds a text."""
        self._fixed_bytes += self._size(cell)
        length = self._lengths[cell.column] = self._lengths.get(cell.column, 0) + 1
        self._rows = max(self._rows, length)
        self.cells.append(cell)

    def _size(self, cell: Cell) -> int:
        header = {"name": _sendable(cell.column)}
        is_new = cell.column not in self._lengths
        return len(_json(_value(cell)).encode()) + is_new * (len(_json(header).encode()) + 1)


def findings_in(reply: Mapping[str, Any], table: Table) -> dict[Cell, tuple[Finding, ...]]:
    """Returns the findings in each text of a table.

    The service states where a finding is twice: in bytes of UTF-8, and in code points, which are the characters of
    a `str`. Numbers are texts there, and a zero is left out.

    Args:
        reply: The reply of the service.
        table: The table that was sent.

    Raises:
        ValueError: A finding is not within a text of the table.
    """
    found: dict[Cell, list[Finding]] = {cell: [] for cell in table.cells}
    for item in list_of(mapping_of(reply.get("result")).get("findings")):
        item = mapping_of(item)
        location = mapping_of(item.get("location"))
        cell = _cell_at(location, table)
        span = location.get("codepointRange")
        # A finding without a range is one of the whole value.
        start, end = (_number(span, "start"), _number(span, "end")) if span else (0, len(cell.text))
        if not 0 <= start < end <= len(cell.text):
            raise ValueError(f"a finding at ({start}, {end}) of a text of {len(cell.text):,} characters")
        kind = kind_of_info_type(str_of(mapping_of(item.get("infoType")).get("name")))
        score = _SCORES.get(str_of(item.get("likelihood")), _SCORES["POSSIBLE"])
        found[cell].append(Finding(start, end, kind, score))
    return {cell: tuple(findings) for cell, findings in found.items()}


def is_truncated(reply: Mapping[str, Any]) -> bool:
    """Returns whether the service has left out findings."""
    return mapping_of(reply.get("result")).get("findingsTruncated") is True


def _cell_at(location: Mapping[str, Any], table: Table) -> Cell:
    places: Sequence[Any] = list_of(location.get("contentLocations"))
    record = mapping_of(mapping_of(places[0]).get("recordLocation")) if places else {}
    column = mapping_of(record.get("fieldId")).get("name")
    row = _number(mapping_of(record.get("tableLocation")), "rowIndex")
    for name, texts in table.columns.items():
        if _sendable(name) == column and 0 <= row < len(texts):
            return texts[row]
    raise ValueError(f"a finding in row {row} of a column that was not sent")


def _number(values: Any, name: str) -> int:
    return int(mapping_of(values).get(name, 0))


def _value(cell: Cell) -> dict[str, str]:
    return {"stringValue": _sendable(cell.text)}


def _sendable(text: str) -> str:
    return text if text.isascii() else _LONE_HALF.sub("\ufffd", text)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
