"""File formats and how their names tell them."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Literal

FileFormat = Literal["jsonl", "csv", "parquet", "avro"]

_ENDINGS: dict[str, FileFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
    ".avro": "avro",
}


def format_of(uri: str) -> FileFormat:
    """Reads the format off a path's ending (`.csv.gz` is `csv`).

    Raises:
        ValueError: No known ending.
    """
    for suffix in reversed(PurePosixPath(uri).suffixes):
        if known := _ENDINGS.get(suffix.lower()):
            return known
    raise ValueError(f"`format` is needed: {uri!r} ends in none of {', '.join(_ENDINGS)}")
