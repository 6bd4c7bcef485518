"""The rows of a source that a job reads: all, a share of them, or those that failed in some ways."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from airflow_provider_llmbeam.pipeline.elements import FailedRow, Row
from airflow_provider_llmbeam.pipeline.records import encode_key
from airflow_provider_llmbeam.spec.source import FilesSource, Source

_WHOLE = (0.0, 1.0)


def selection(source: Source, *, is_own_dead_letter: bool = False) -> Callable[[Row | FailedRow], bool] | None:
    """Returns whether a job reads a row of its source; `None` if it reads all.

    Rows without a key belong to the share that begins at 0, so that one of several jobs reports them.

    Args:
        source: The source.
        is_own_dead_letter: Whether it is, or contains, the dead letter of the job. A row there that shares its key
            with an answered one is read only if `failed_kinds` names it: its answer would replace the other one.
    """
    kinds = frozenset(source.failed_kinds) if isinstance(source, FilesSource) else frozenset()
    leaves_duplicates = is_own_dead_letter and not kinds
    if source.share == _WHOLE and not kinds and not leaves_duplicates:
        return None
    low, high = source.share

    def is_selected(row: Row | FailedRow) -> bool:
        if isinstance(row, FailedRow):
            return low == 0
        if kinds and _kind(row) not in kinds:
            return False
        if leaves_duplicates and _kind(row) == "duplicate_key":
            return False
        if any(row.get(column) is None for column in source.key):
            return low == 0
        place = _place(encode_key(row, source.key))
        return low <= place < high

    return is_selected


def _kind(row: Row) -> Any:
    error = row.get("llmbeam_error")
    return error.get("kind") if isinstance(error, dict) else None


def _place(key: bytes) -> float:
    """Returns the place of a key from 0 to below 1, evenly spread and the same on every machine."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=6).digest()) / 2**48
