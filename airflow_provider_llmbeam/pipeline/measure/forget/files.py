"""Files without some of their rows: each is replaced at one stroke, and its other rows keep their values."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.elements import Row

_BATCH_ROWS = 1000


def read_rows(uri: str, columns: Sequence[str] | None = None) -> Iterator[Row]:
    """Reads the rows of a file of JSON lines or Parquet; lines that are no objects are passed over.

    Args:
        uri: The file; `.parquet` at its end names its format.
        columns: Columns to read of a Parquet file; `None` for all.
    """
    if uri.endswith(".parquet"):
        with storage.open(uri) as file, pq.ParquetFile(file) as table:
            known = None if columns is None else [name for name in columns if name in table.schema_arrow.names]
            for batch in table.iter_batches(batch_size=_BATCH_ROWS, columns=known):
                yield from batch.to_pylist()
        return
    with storage.open_buffered(uri) as file:
        for line in file:
            if (row := _row(line)) is not None:
                yield row


def remove_lines(uri: str, is_removed: Callable[[bytes], bool], *, dry_run: bool) -> int:
    """Removes lines from a private file of this package, and deletes a file without lines.

    Args:
        uri: The file.
        is_removed: Whether a line is removed.
        dry_run: Whether the lines are only counted.

    Returns:
        The number of lines.
    """
    kept, count = [], 0
    with storage.open_buffered(uri) as file:
        for line in file:
            if is_removed(line):
                count += 1
            else:
                kept.append(line)
    if count and not dry_run:
        if kept:
            storage.replace(uri, b"".join(kept))
        else:
            storage.delete([uri])
    return count


def remove_rows(
    uri: str, staging_uri: str, is_removed: Callable[[Row], bool], *, dry_run: bool, is_private: bool = False
) -> int:
    """Removes rows from a published file, which may be large, and has any access rights.

    Args:
        uri: The file.
        staging_uri: Directory of the new file until it takes the place of the old one.
        is_removed: Whether a row is removed.
        dry_run: Whether the rows are only counted.
        is_private: Whether nobody but its owner can read it, if it is a local file.

    Returns:
        The number of rows.
    """
    count = sum(map(is_removed, read_rows(uri)))
    if not count or dry_run:
        return count
    staged = f"{staging_uri}forget-{uuid.uuid4().hex}"
    if uri.endswith(".parquet"):
        _write_parquet(uri, staged, is_removed)
    else:
        with storage.open_buffered(uri) as old, storage.create(staged, is_private=is_private) as new:
            for line in old:
                if (row := _row(line)) is None or not is_removed(row):
                    new.write(line)
    storage.rename({staged: uri})
    return count


def _write_parquet(uri: str, staged: str, is_removed: Callable[[Row], bool]) -> None:
    with (
        storage.open(uri) as old,
        storage.create(staged) as new,
        pq.ParquetFile(old) as table,
        pq.ParquetWriter(new, table.schema_arrow) as writer,
    ):
        for group in range(table.num_row_groups):
            rows = table.read_row_group(group)
            kept = pa.array([not is_removed(row) for row in rows.to_pylist()], pa.bool_())
            writer.write_table(rows.filter(kept))


def _row(line: bytes) -> Row | None:
    try:
        found: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
