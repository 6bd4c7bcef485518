"""Staged files of output rows."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.columns import OutputColumns
from airflow_provider_llmbeam.pipeline.elements import Row
from airflow_provider_llmbeam.pipeline.records import encode_key
from airflow_provider_llmbeam.pipeline.sinks.parquet import (
    FileTypes,
    common_schema,
    read_types,
    rewrite_parquet,
    write_parquet,
)

_THREADS = 16


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


def with_equal_types(files: Mapping[str, str]) -> dict[str, str]:
    """Writes staged Parquet files again whose types are not those of the rows of all of them.

    A directory of Parquet files is one dataset only if their types are equal, and each file is first written with
    those of its own rows.

    Args:
        files: The final address of each staged file. One that an earlier attempt has moved is read there, as its
            types count.

    Returns:
        The final address of each file with these types.
    """
    if len(files) == 1:
        return dict(files)
    with ThreadPoolExecutor(_THREADS) as threads:
        types = dict(zip(files, threads.map(_types_of, files.items()), strict=True))
    if not (found := [each for each in types.values() if each is not None]):
        return dict(files)
    schema = common_schema(found)
    return {
        _rewritten(staged, schema) if (each := types[staged]) is not None and each[0] != schema else staged: final
        for staged, final in files.items()
    }


def _types_of(file: tuple[str, str]) -> FileTypes | None:
    for uri in file:
        if storage.exists(uri):
            with storage.open(uri) as found:
                return read_types(found)
    return None


def _rewritten(uri: str, schema: pa.Schema) -> str:
    """Returns the address of a file with the rows of another one, which stays: a retry reads it."""
    target = f"{uri.removesuffix('.parquet')}-typed.parquet"
    with storage.open(uri) as source, storage.create(target) as file:
        rewrite_parquet(source, file, schema)
    return target
