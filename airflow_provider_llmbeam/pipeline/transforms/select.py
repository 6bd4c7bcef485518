"""The rows of a source that a job reads: all, a share of them, or those that failed in some ways."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from airflow_provider_llmbeam.pipeline.elements import FailedRow, Row
from airflow_provider_llmbeam.pipeline.records import encode_key
from airflow_provider_llmbeam.spec.source import FilesSource, Source

_WHOLE = (0.0, 1.0)


def selection(source: Source) -> Callable[[Row | FailedRow], bool] | None:
    """Returns whether a job reads a row of its source; `None` if it reads all.

    Rows without a key belong to the share that begins at 0, so that one of several jobs reports them.
    """
    kinds = frozenset(source.failed_kinds) if isinstance(source, FilesSource) else frozenset()
    if source.share == _WHOLE and not kinds:
        return None
    low, high = source.share

    def is_selected(row: Row | FailedRow) -> bool:
        if isinstance(row, FailedRow):
            return low == 0
        if kinds:
            error = row.get("llmbeam_error")
            if not isinstance(error, dict) or error.get("kind") not in kinds:
                return False
        if any(row.get(column) is None for column in source.key):
            return low == 0
        place = _place(encode_key(row, source.key))
        return low <= place < high

    return is_selected


def _place(key: bytes) -> float:
    """Returns the place of a key from 0 to below 1, evenly spread and the same on every machine."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=6).digest()) / 2**48
