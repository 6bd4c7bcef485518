"""Steps that write rows to staged files, which `publish` moves to their final names."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from functools import partial

import apache_beam as beam

from airflow_provider_llmbeam.pipeline.columns import OutputColumns
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow, FailedRow
from airflow_provider_llmbeam.pipeline.records import answer_record, encode_record, failed_record
from airflow_provider_llmbeam.pipeline.sinks.staged import shard_of, write_file
from airflow_provider_llmbeam.pipeline.transforms.line_blocks import ToLineBlocks

_NO_COLUMNS = OutputColumns(())


class WriteStaged(beam.PTransform):
    """Writes rows to at most `shards` files in the staging directory and outputs `(shard, uri)`.

    Args:
        staging_uri: Directory, ends in `/`.
        prefix: Prefix of the file names.
        file_format: `jsonl` or `parquet`.
        shards: Number of files. The key of a row determines its file.
        columns: Columns of the answers; in Parquet the types of those from the source are derived from the data.
        is_private: Whether nobody but the owner can read a local file, also when it is published.
    """

    def __init__(
        self,
        staging_uri: str,
        prefix: str,
        *,
        file_format: str,
        shards: int = 1,
        columns: OutputColumns = _NO_COLUMNS,
        is_private: bool = False,
    ) -> None:
        super().__init__()
        self._shards = shards
        self._columns = columns
        self._write = _WriteShard(staging_uri, prefix, file_format, columns, is_private)

    def expand(self, branches: tuple[beam.PCollection, ...]) -> beam.PCollection:
        """Encodes the rows of each branch, so that only blocks of lines are shuffled; then writes each shard."""
        encode = partial(_shard_and_line, self._columns, self._shards)
        blocks = [
            rows | f"Encode{number}" >> beam.ParDo(ToLineBlocks(encode)) for number, rows in enumerate(branches)
        ]
        (first, *others) = blocks
        every = blocks | beam.Flatten() if others else first
        return every | beam.GroupByKey() | beam.ParDo(self._write)


def _shard_and_line(columns: OutputColumns, shards: int, found: AnsweredRow | FailedRow) -> tuple[int, bytes]:
    if isinstance(found, FailedRow):
        return 0, encode_record(failed_record(found))
    return shard_of(found.row, columns.key, shards), encode_record(answer_record(found, columns))


class _WriteShard(beam.DoFn):
    def __init__(
        self,
        staging_uri: str,
        prefix: str,
        file_format: str,
        columns: OutputColumns,
        is_private: bool,
    ) -> None:
        self._staging_uri = staging_uri
        self._prefix = prefix
        self._file_format = file_format
        self._columns = columns
        self._is_private = is_private

    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[tuple[int, str]]:
        shard, blocks = element
        lines = (line for block in blocks for line in block.splitlines(keepends=True))
        uri = f"{self._staging_uri}{self._prefix}-{shard}-{uuid.uuid4().hex}.{self._file_format}"
        write_file(uri, lines, self._file_format, self._columns, is_private=self._is_private)
        yield shard, uri
