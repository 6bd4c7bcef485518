"""Merges by key into files that exist: answers, and the dead letter.

The merged files are written beside the staged ones, which stay until the job is complete. A job that is killed
half-way through the renames merges again, with the same result: rows of this run come from the staged files, and
each other key from one of the earlier files.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow.parquet as pq

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.columns import OutputColumns
from airflow_provider_llmbeam.pipeline.elements import Row
from airflow_provider_llmbeam.pipeline.records import encode_equal_key, encode_record, whole
from airflow_provider_llmbeam.pipeline.sinks import files
from airflow_provider_llmbeam.pipeline.sinks.files import shard_of, write_file
from airflow_provider_llmbeam.pipeline.sinks.parquet import as_text
from airflow_provider_llmbeam.spec.sink import FilesSink

_SHARD = re.compile(r"/answers-(\d+)-of-(\d+)\.\w+$")
_BATCH_ROWS = 1000
_MAX_NAMED = 3

#: A record and its line.
_Record = tuple[Row, bytes]


def check(sink: FilesSink, columns: OutputColumns) -> None:
    """Checks, before anything is sent, that the files in a sink have the format and the columns of this job.

    Raises:
        JobSpecError: They differ, or a file has a name that no job writes.
    """
    for uri in _answers(sink):
        if not uri.endswith(f".{sink.format}"):
            raise JobSpecError(
                f"`sink.format` {sink.format!r}: {uri!r} has another format, which `sink.on_existing` 'merge' "
                "cannot change."
            )
        if not _SHARD.search(uri):
            raise JobSpecError(
                f"`sink.on_existing` 'merge': {uri!r} does not have the name of a file that a job writes, such as "
                f"'answers-00000-of-00001.{sink.format}', so its rows would not be merged. Rename it, or move it "
                "to another directory."
            )
        found = _columns(uri, sink.format)
        if found is not None and found != set(columns.names):
            raise JobSpecError(
                f"`sink.on_existing` 'merge': {uri!r} has columns {_names(found - set(columns.names))} that these "
                f"answers lack, and lacks {_names(set(columns.names) - found)}."
            )


def publish(sink: FilesSink, columns: OutputColumns, staged: Mapping[int, str], staging_uri: str) -> list[str]:
    """Replaces the files of the sink by ones that also have the rows of other keys; a repetition changes nothing.

    Returns:
        The addresses of the answers.
    """
    shards = [(uri, int(found[1]), int(found[2])) for uri in _answers(sink) if (found := _SHARD.search(uri))]
    replaced = [uri for uri, _, _ in shards]
    if not all(map(storage.exists, staged.values())):  # An earlier attempt has published and deleted them.
        return files.publish(sink, staged, replaced)
    identify = key_of(columns, sink.format)
    seen = frozenset(identify(row) for uri in staged.values() for row, _ in _read(uri, sink.format))
    shards.sort(
        key=lambda shard: shard[2] != sink.shards
    )  # Those of an attempt that was killed are the newer ones.
    merged = {}
    for shard, new in staged.items():
        earlier = [
            _read_shard(uri, sink, columns, shard, is_sure=count == sink.shards)
            for uri, number, count in shards
            if count != sink.shards or number == shard
        ]
        merged[shard] = f"{staging_uri}merged-{shard}-{uuid.uuid4().hex}.{sink.format}"
        lines = chain((line for _, line in _read(new, sink.format)), _skip_seen(earlier, identify, seen))
        write_file(merged[shard], lines, sink.format, columns)
    return files.publish(sink, merged, replaced)


def merge_dead_letter(
    uri: str,
    new: str,
    staging_uri: str,
    columns: OutputColumns,
    done: Iterable[Row],
    file_format: str,
    plain: Callable[[Row], Row] = lambda row: row,
    is_read: Callable[[Row], bool] | None = None,
) -> str:
    """Writes the dead letter with the rows of an earlier one that this run neither answered nor failed.

    Args:
        uri: Address of the dead letter.
        new: The staged dead letter of this run.
        staging_uri: Directory of the result.
        columns: Columns of the answers.
        done: Rows that this run answered and published.
        file_format: Format of the answers, which decides whether the keys 1 and "1" differ.
        plain: Returns a row of the dead letter with its key as the answers have it.
        is_read: Returns whether this run has read a row of the dead letter; `None` if that is not its source.

    Returns:
        The address of the result.
    """
    identify = key_of(columns, file_format)

    def identity(row: Row) -> bytes:
        if all(row.get(column) is not None for column in columns.key):
            return identify(plain(row))
        return _digest(encode_record({name: value for name, value in row.items() if name != "llmbeam_error"}))

    seen, written = {identify(row) for row in done}, set[bytes]()
    for row, line in _read(new, "jsonl"):
        seen.add(identity(row))
        written.add(_digest(line))

    def is_kept(row: Row, line: bytes) -> bool:
        if is_read is not None and not is_read(row):
            return _digest(line) not in written  # from an attempt that was killed after the rename
        return identity(row) not in seen

    earlier = _read(uri, "jsonl") if storage.exists(uri) else iter(())
    merged = f"{staging_uri}dead_letter-merged-{uuid.uuid4().hex}.jsonl"
    # Rows that share a key are kept, as each is one failed row: see `source.on_duplicate_key`.
    kept = (line for row, line in earlier if is_kept(row, line))
    lines = chain((line for _, line in _read(new, "jsonl")), kept)
    write_file(merged, lines, "jsonl", columns, is_private=True)
    return merged


def read_rows(staged: Mapping[int, str], file_format: str) -> Iterator[Row]:
    """Reads the rows of staged files that still exist."""
    for uri in staged.values():
        if storage.exists(uri):
            yield from (row for row, _ in _read(uri, file_format))


def key_of(columns: OutputColumns, file_format: str) -> Callable[[Row], bytes]:
    """Returns the function that identifies a row, in 16 bytes.

    A whole number of type float equals the integer, see `whole`. A key column of Parquet that has a text has texts
    only, so there its numbers equal their texts.
    """
    if file_format == "jsonl":
        return lambda row: _digest(encode_equal_key(row, columns.key))
    return lambda row: _digest("\0".join(as_text(whole(row[name])) for name in columns.key).encode())


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16).digest()


def _skip_seen(
    files: Sequence[Iterable[_Record]], identify: Callable[[Row], bytes], seen: frozenset[bytes]
) -> Iterator[bytes]:
    """Yields the lines of other keys, of each key those of the first file that has it.

    All rows of a key are in one file of a run: several, if its source allowed duplicate keys. Of the last file no
    key is kept in memory: a sink has all rows that have ever been merged into it.
    """
    earlier = set[bytes]()
    for number, records in enumerate(files, 1):
        found = set[bytes]()
        for row, line in records:
            if (key := identify(row)) not in seen and key not in earlier:
                if number < len(files):
                    found.add(key)
                yield line
        earlier |= found


def _read_shard(
    uri: str, sink: FilesSink, columns: OutputColumns, shard: int, *, is_sure: bool
) -> Iterator[_Record]:
    for row, line in _read(uri, sink.format):
        if is_sure or shard_of(row, columns.key, sink.shards) == shard:
            yield row, line


def _answers(sink: FilesSink) -> list[str]:
    return sorted(storage.match(f"{sink.uri}answers-*"))


def _columns(uri: str, file_format: str) -> set[str] | None:
    """Returns the columns of a file of answers; `None` for one without rows, whose columns do not matter."""
    if file_format == "jsonl":
        return next((set(row) for row, _ in _read(uri, file_format)), None)
    with storage.open(uri) as file:
        footer = pq.read_metadata(file)
        return set(footer.schema.to_arrow_schema().names) if footer.num_rows else None


def _read(uri: str, file_format: str) -> Iterator[_Record]:
    if file_format == "jsonl":
        with storage.open_buffered(uri) as lines:
            for line in lines:
                if line.strip():
                    yield _parse_line(line, uri), line if line.endswith(b"\n") else line + b"\n"
        return
    with storage.open(uri) as file, pq.ParquetFile(file) as table:
        for batch in table.iter_batches(batch_size=_BATCH_ROWS):
            for row in batch.to_pylist():
                yield row, encode_record(row)


def _parse_line(line: bytes, uri: str) -> Row:
    try:
        found: Any = json.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise JobFailedError(
            f"{uri!r} has a line that is not a row, and merging would lose it: {line[:80]!r}. The files were left "
            "as they are; the answers are in the journal, and a retry sends nothing to the model."
        )
    return found


def _names(names: set[str]) -> str:
    shown = ", ".join(map(repr, sorted(names)[:_MAX_NAMED])) or "none"
    return shown if len(names) <= _MAX_NAMED else f"{shown} and {len(names) - _MAX_NAMED} more"
