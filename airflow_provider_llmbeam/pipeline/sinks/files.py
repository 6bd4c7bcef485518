"""The files sink: staged files of output rows, moved to a directory by renames."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from airflow_provider_llmbeam.exceptions import RowsLostError
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
from airflow_provider_llmbeam.spec.sink import FilesSink

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


def publish(sink: FilesSink, staged: Mapping[int, str], replaced: Iterable[str]) -> list[str]:
    """Moves the staged files of all shards to their final names, replacing those of an earlier run.

    Args:
        sink: The sink.
        staged: Address of the file of each shard.
        replaced: Addresses of the files of earlier runs.

    Returns:
        The addresses of the answers.
    """
    answers = {
        uri: f"{sink.uri}answers-{shard:05}-of-{sink.shards:05}.{sink.format}"
        for shard, uri in sorted(staged.items())
    }
    outdated = {*replaced} - {*answers.values()}
    move_in(equalize_types(answers) if sink.format == "parquet" else answers)
    storage.delete(outdated)
    return list(answers.values())


def move_in(files: Mapping[str, str]) -> None:
    """Renames staged files to their final names; a file that an earlier attempt has moved is skipped."""
    storage.rename({staged: final for staged, final in files.items() if storage.exists(staged)})
    if missing := [final for final in files.values() if not storage.exists(final)]:
        raise RowsLostError(f"{missing[0]!r} was written and does not exist. A retry sends nothing to the model.")


def equalize_types(files: Mapping[str, str]) -> dict[str, str]:
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
        _rewrite(staged, schema) if (each := types[staged]) is not None and each[0] != schema else staged: final
        for staged, final in files.items()
    }


def _types_of(file: tuple[str, str]) -> FileTypes | None:
    for uri in file:
        if storage.exists(uri):
            with storage.open(uri) as found:
                return read_types(found)
    return None


def _rewrite(uri: str, schema: pa.Schema) -> str:
    """Returns the address of a file with the rows of another one, which stays: a retry reads it."""
    target = f"{uri.removesuffix('.parquet')}-typed.parquet"
    with storage.open(uri) as source, storage.create(target) as file:
        rewrite_parquet(source, file, schema)
    return target
