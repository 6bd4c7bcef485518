"""Rows of batch inference and their lines: read, drawn for a fate, damaged, encoded. No HTTP."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llmbeam_sandbox.batch_inference.settings import BatchSettings
from llmbeam_sandbox.core.responses import encoded

Fate = Literal["whole", "failed", "malformed", "missing"]
NOT_JSON = b"<html><body>502 Bad Gateway</body></html>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One request of a job.

    Attributes:
        line: Its line, or its item of a list, as submitted.
        fate: What becomes of its result.
    """

    line: Mapping[str, Any]
    fate: Fate = "whole"


def read_lines(data: bytes, *required: str) -> list[dict[str, Any]]:
    """Returns the JSON objects in lines; `required` are fields that each must have.

    Raises:
        ValueError: A line is not such an object; the message has its number.
    """
    found = []
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
        if not isinstance(value, dict):
            raise ValueError(f"line {number}: not an object")
        missing = [name for name in required if not value.get(name)]
        if missing:
            raise ValueError(f"line {number}: the field `{missing[0]}` is missing")
        found.append(value)
    return found


def drawn(lines: Sequence[Mapping[str, Any]], settings: BatchSettings, source: random.Random) -> tuple[Row, ...]:
    """Returns the rows of lines in a random order, each with its fate."""
    fates: list[Fate] = []
    shares: Mapping[Fate, float] = {
        "failed": settings.fail_ratio,
        "malformed": settings.malformed_ratio,
        "missing": settings.missing_ratio,
    }
    for fate, share in shares.items():
        # A product such as 0.1 * 30 is a little more than the whole number.
        fates += [fate] * math.ceil(share * len(lines) - 1e-9)
    fates += ["whole"] * (len(lines) - len(fates))
    rows = [
        Row(line=line, fate=fate)
        for line, fate in zip(lines, source.sample(fates[: len(lines)], len(lines)), strict=True)
    ]
    return tuple(source.sample(rows, len(rows)))


def encoded_lines(results: Iterable[tuple[Row, Mapping[str, Any]]]) -> list[bytes]:
    """Returns results as lines without their ends, damaged by the fates of their rows.

    Every other malformed line is cut in the middle; the others are not JSON at all.
    """
    found: list[bytes] = []
    is_cut = False
    for row, value in results:
        if row.fate == "missing":
            continue
        line = encoded(value)
        if row.fate == "malformed":
            is_cut = not is_cut
            line = line[: len(line) // 2] if is_cut else NOT_JSON
        found.append(line)
    return found


def padded(value: Any, name: str = "") -> Any:
    """Returns a request whose `parts` have `null` for the text or the file that they do not have."""
    if isinstance(value, Mapping):
        absent = {"fileData": None, "text": None} if name == "parts" else {}
        return absent | {each: padded(item, each) for each, item in value.items()}
    return [padded(item, name) for item in value] if isinstance(value, list) else value


def reordered(value: Any) -> Any:
    """Returns a value of JSON with the fields in the reverse order, and whole numbers as 1.0 for 1."""
    if isinstance(value, Mapping):
        return {name: reordered(item) for name, item in reversed(list(value.items()))}
    if isinstance(value, list):
        return [reordered(item) for item in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
