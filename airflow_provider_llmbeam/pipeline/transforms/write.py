"""Steps that write rows to staged files, which `publish` moves to their final names."""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterable, Iterator

import apache_beam as beam

from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow, FailedRow, Row
from airflow_provider_llmbeam.pipeline.records import answer_record, encode_key, encode_record, failed_record
from airflow_provider_llmbeam.pipeline.sinks.parquet import write_parquet


class WriteStaged(beam.PTransform):
    """Writes rows to at most `shards` files in the staging directory and outputs `(shard, uri)`.

    Args:
        staging_uri: Directory, ends in `/`.
        prefix: Prefix of the file names.
        file_format: `jsonl` or `parquet`.
        shards: Number of files. The key of a row determines its file.
        key: Key columns; in Parquet their types are derived from the data.
        has_vectors: Whether the answers are vectors.
    """

    def __init__(
        self,
        staging_uri: str,
        prefix: str,
        *,
        file_format: str,
        shards: int = 1,
        key: tuple[str, ...] = (),
        has_vectors: bool = False,
    ) -> None:
        super().__init__()
        self._shards = shards
        self._key = key
        self._write = _WriteShard(staging_uri, prefix, file_format, key, has_vectors)

    def expand(self, branches: tuple[beam.PCollection, ...]) -> beam.PCollection:
        """Encodes the rows of each branch, so that only lines are shuffled; then writes each shard."""
        lines = [
            rows | f"Encode{number}" >> beam.Map(_line, self._key, self._shards)
            for number, rows in enumerate(branches)
        ]
        (first, *others) = lines
        every = lines | beam.Flatten() if others else first
        return every | beam.GroupByKey() | beam.ParDo(self._write)


def _line(found: AnsweredRow | FailedRow, key: tuple[str, ...], shards: int) -> tuple[int, bytes]:
    if isinstance(found, FailedRow):
        return 0, encode_record(failed_record(found))
    return _shard(found.row, key, shards), encode_record(answer_record(found, key))


def _shard(row: Row, key: tuple[str, ...], shards: int) -> int:
    if shards == 1:
        return 0
    return zlib.crc32(encode_key(row, key)) % shards


class _WriteShard(beam.DoFn):
    def __init__(
        self, staging_uri: str, prefix: str, file_format: str, key: tuple[str, ...], has_vectors: bool
    ) -> None:
        self._staging_uri = staging_uri
        self._prefix = prefix
        self._file_format = file_format
        self._key = key
        self._has_vectors = has_vectors

    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[tuple[int, str]]:
        shard, lines = element
        uri = f"{self._staging_uri}{self._prefix}-{shard}-{uuid.uuid4().hex}.{self._file_format}"
        write_file(uri, lines, self._file_format, self._key, has_vectors=self._has_vectors)
        yield shard, uri


def write_file(
    uri: str, lines: Iterable[bytes], file_format: str, key: tuple[str, ...], *, has_vectors: bool = False
) -> None:
    """Writes encoded records to a new file."""
    with storage.create(uri) as file:
        if file_format == "parquet":
            write_parquet(lines, file, key, has_vectors=has_vectors)
        else:
            file.writelines(lines)
