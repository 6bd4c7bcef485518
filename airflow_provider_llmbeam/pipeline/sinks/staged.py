"""Staged files of output rows."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.columns import OutputColumns
from airflow_provider_llmbeam.pipeline.elements import Row
from airflow_provider_llmbeam.pipeline.records import encode_key
from airflow_provider_llmbeam.pipeline.sinks.parquet import write_parquet


def shard_of(row: Row, key: tuple[str, ...], shards: int) -> int:
    """Returns the number of the file that a row belongs to, which its key determines."""
    if shards == 1:
        return 0
    return zlib.crc32(encode_key(row, key)) % shards


def write_file(
    uri: str,
    lines: Iterable[bytes],
    file_format: str,
    columns: OutputColumns,
    *,
    is_private: bool = False,
) -> None:
    """Writes encoded records to a new file."""
    with storage.create(uri, is_private=is_private) as file:
        if file_format == "parquet":
            write_parquet(lines, file, columns)
        else:
            file.writelines(lines)
