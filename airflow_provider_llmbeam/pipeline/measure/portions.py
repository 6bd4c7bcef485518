"""Reads the rows of a source without a graph: all of them, or portions of a large one at equal distances."""

from __future__ import annotations

import codecs
import csv
import io
import math
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from typing import IO, TypeVar

import pyarrow.parquet as pq
from apache_beam.io.filesystem import FileMetadata

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.elements import FailedRow, Row
from airflow_provider_llmbeam.pipeline.prompt_of_row import RowPrompts
from airflow_provider_llmbeam.pipeline.sources.check_files import check_source
from airflow_provider_llmbeam.pipeline.sources.files import (
    BATCH_ROWS,
    MARKED,
    RowFormat,
    avro_blocks,
    parse_avro,
    parse_csv,
    parse_line,
    parse_table,
    read_batches,
)
from airflow_provider_llmbeam.pipeline.sources.lines import is_compressed, plain, read_lines
from airflow_provider_llmbeam.pipeline.sources.sql import find_sample, with_types
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.source import (
    BigQuerySource,
    FilesSource,
    KafkaSource,
    PubSubSource,
    RowsSource,
    SqlSource,
)

T = TypeVar("T")

#: Maximum size in bytes of a source of which every row is read.
MAX_BYTES = 64 * 2**20
#: Number of portions of a large source.
PORTIONS = 64
#: Bytes of lines that are read at once, as a portion includes what is read beyond its last row: with 1 MiB, which
#: is the budget of each of 64 compressed files, the estimate was a third of the rows.
_BLOCK_BYTES = 2**13
#: Maximum size of the header of an Avro or CSV file.
_HEAD_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Portion:
    """A part of the rows of a source.

    Attributes:
        rows: Rows, and `FailedRow`s for invalid lines.
        size: Their part of the source: bytes of the stored files, or rows for Parquet.
    """

    rows: Sequence[Row | FailedRow]
    size: float


class SourceReading:
    """The rows of a source as they are read.

    Args:
        size: Size of the whole source, in the unit of `Portion.size`.
        portions: What is read of it.
        ran_query: Whether a query was run for it, which BigQuery bills.

    Attributes:
        ran_query: The argument.
    """

    def __init__(self, size: float, portions: Iterable[Portion], *, ran_query: bool = False) -> None:
        self.ran_query = ran_query
        self._size = size
        self._portions = portions
        self._read = 0.0

    def portions(self) -> Iterator[Portion]:
        """Yields what is read of it."""
        for portion in self._portions:
            self._read += portion.size
            yield portion

    def rows(self) -> Iterator[Row | FailedRow]:
        """Yields the rows of it."""
        for portion in self.portions():
            yield from portion.rows

    @property
    def is_partial(self) -> bool:
        """Whether only a part of it was read."""
        return self.scale != 1

    @property
    def scale(self) -> float:
        """Size of the source over that of what was read so far; 1 if all of it was."""
        return self._size / self._read if 0 < self._read < (1 - 1e-9) * self._size else 1.0


@contextmanager
def read_once(spec: JobSpec, prompts: RowPrompts, max_bytes: int = MAX_BYTES) -> Iterator[SourceReading]:
    """Provides the reading of a source, and deletes the export of a BigQuery source afterwards; see `read_source`.

    Runs that overlap must not delete the export of each other.
    """
    export_uri = f"{spec.paths.export_uri}{uuid.uuid4().hex}/"
    try:
        yield read_source(spec, prompts, export_uri, max_bytes)
    finally:
        if isinstance(prompts.source, BigQuerySource):
            from airflow_provider_llmbeam.pipeline.sources.bigquery import discard

            discard(export_uri)


def read_source(spec: JobSpec, prompts: RowPrompts, export_uri: str, max_bytes: int = MAX_BYTES) -> SourceReading:
    """Reads the selected rows of a source, or of portions of a large one; see `read_portions`.

    Args:
        spec: The job.
        prompts: Selects the rows of its source.
        export_uri: Directory for the export of a BigQuery source; `JobPaths.export_uri` for the one of a run.
        max_bytes: A larger source is read in portions.

    Raises:
        JobSpecError: The source does not exist.
    """
    ran_query = False
    if isinstance(prompts.source, BigQuerySource):
        from airflow_provider_llmbeam.pipeline.sources.bigquery import export

        exported = export(prompts.source, export_uri, spec.kms_key_name, is_of_run=False)
        export_uri, ran_query = exported.directory, exported.ran_query
    size, portions = _read_all(spec, prompts, export_uri, max_bytes)
    selected = (
        Portion([row for row in portion.rows if prompts.selects(row) and not prompts.skips(row)], portion.size)
        for portion in portions
    )
    return SourceReading(size, selected, ran_query=ran_query)


def _read_all(
    spec: JobSpec, prompts: RowPrompts, directory: str, max_bytes: int
) -> tuple[float, Iterable[Portion]]:
    match source := prompts.source:
        case FilesSource():
            check_source(source.uri, source.resolved_format, source.on_missing)
            return read_portions(
                source.uri, RowFormat(source.resolved_format, source.csv, prompts.used), max_bytes
            )
        case BigQuerySource():
            from airflow_provider_llmbeam.pipeline.sources.bigquery import json_values

            size, portions = read_portions(f"{directory}*.avro", RowFormat("avro"), max_bytes)
            return size, (
                Portion([row if isinstance(row, FailedRow) else json_values(row) for row in each.rows], each.size)
                for each in portions
            )
        case SqlSource():
            pattern, stage = find_sample(spec)
            _, portions = read_portions(pattern, RowFormat("parquet", used=prompts.used), max_bytes)
            return float(stage.query_rows), (
                Portion([*map(with_types, each.rows)], each.size) for each in portions
            )
        case KafkaSource() | PubSubSource():
            raise JobSpecError(
                f"`source.type`: the messages of a source of type {source.type!r} are taken by runs of the job "
                "alone. Name a source of type 'files', 'bigquery' or 'rows' with such rows."
            )
        case RowsSource():
            return float(len(source.rows)), [Portion([dict(row) for row in source.rows], float(len(source.rows)))]


def read_portions(uri: str, how: RowFormat, max_bytes: int) -> tuple[float, Iterator[Portion]]:
    """Reads files up to a limit.

    Up to `max_bytes` all rows are read. A larger source is read in portions of so many bytes in total: for JSON
    lines, CSV and Avro at equal distances over all bytes; for Parquet the beginnings of row groups at equal
    distances; for compressed files, which are not seekable, the beginnings of files at equal distances.

    Args:
        uri: A path or a glob.
        how: How their rows are read.
        max_bytes: Maximum size of the uncompressed data, in bytes.

    Returns:
        The size of the whole source, in the unit of `Portion.size`, and the portions. All rows were read if their
        sizes add up to it.
    """
    files = [file for file in storage.find(uri) if file.size_in_bytes]
    size = float(sum(file.size_in_bytes for file in files))
    if how.format == "parquet":
        return _parquet(files, size, max_bytes, how)
    sampled = spread_over(files, PORTIONS)
    is_plain = not any(is_compressed(file.path) for file in sampled)
    if is_plain and size <= max_bytes:
        return size, _beginnings(files, how, math.inf)
    if is_plain and (how.format != "csv" or how.csv.can_be_cut):
        return size, _spots(files, how, max_bytes)
    return size, _beginnings(sampled, how, max_bytes)


def spread_over(ordered: Sequence[T], count: int) -> list[T]:
    """Selects at most `count` items at equal distances."""
    count = min(count, len(ordered))
    return [ordered[int((number + 0.5) * len(ordered) / count)] for number in range(count)]


def _rows(stream: IO[bytes], how: RowFormat) -> Iterator[Row | FailedRow]:
    match how.format:
        case "jsonl":
            for line in read_lines(stream, block_size=_BLOCK_BYTES):
                yield from parse_line(line)
        case "csv":
            text = io.TextIOWrapper(stream, encoding=how.csv.codec, errors=MARKED, newline="")
            try:
                yield from parse_csv(text, how)
            finally:
                text.detach()  # the owner of the stream closes it
        case _:
            yield from parse_avro(stream, how)


def _batches(rows: Iterator[Row | FailedRow]) -> Iterator[list[Row | FailedRow]]:
    while batch := list(islice(rows, BATCH_ROWS)):
        yield batch


class _Counted(io.RawIOBase):
    """Counts the bytes that are read of an expanded file, and the stored bytes that they take.

    The stored file is ahead of the reader by all that is expanded at once: 900 kB of bzip2, 4 MB of gzip at most.
    """

    def __init__(self, stored: IO[bytes], path: str) -> None:
        super().__init__()
        self._stored = stored
        self._stream = plain(stored, path)
        self.read_bytes = 0
        self._used = (0, 0)  # stored bytes, and the bytes that they expand to

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        at = self._stored.tell()
        found = self._stream.read(len(buffer))
        if self._stored.tell() > at:  # all that was expanded before is read
            self._used = at, self.read_bytes
        buffer[: len(found)] = found
        self.read_bytes += len(found)
        return len(found)

    @property
    def stored_bytes(self) -> float:
        """The stored bytes of what is read; 0 until it is known how many these are."""
        stored, expanded = self._used
        return stored * self.read_bytes / expanded if expanded else 0.0


def _beginnings(files: Sequence[FileMetadata], how: RowFormat, max_bytes: float) -> Iterator[Portion]:
    size = sum(file.size_in_bytes for file in files)
    for file in files:
        budget = max_bytes * file.size_in_bytes / size
        with storage.open(file.path) as raw:
            taken = 0.0
            counted = _Counted(raw, file.path)
            with io.BufferedReader(counted) as stream:
                for rows in _batches(_rows(stream, how)):
                    at = max(taken, counted.stored_bytes)
                    yield Portion(rows, at - taken)
                    taken = at
                    if at and counted.read_bytes > budget:
                        break
                else:
                    yield Portion((), file.size_in_bytes - taken)


def _parquet(
    files: Sequence[FileMetadata], size: float, max_bytes: int, how: RowFormat
) -> tuple[float, Iterator[Portion]]:
    sampled = spread_over(files, PORTIONS)
    groups: list[tuple[str, int, int, int]] = []  # path, number, rows, bytes
    for file in sampled:
        with storage.open(file.path) as stream:
            footer = pq.read_metadata(stream)
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            groups.append((file.path, number, group.num_rows, group.total_byte_size))
    rows = sum(group[2] for group in groups)
    is_whole = len(sampled) == len(files) and sum(group[3] for group in groups) <= max_bytes
    if is_whole:
        return float(rows), (portion for group in groups for portion in _group(*group, None, how))
    # The other files are assumed to have as many rows per byte.
    of_all = rows * size / (sum(file.size_in_bytes for file in sampled) or 1)
    picked = spread_over(groups, PORTIONS)
    return of_all, (portion for group in picked for portion in _group(*group, max_bytes / len(picked), how))


def _group(
    path: str, number: int, rows: int, size: int, max_bytes: float | None, how: RowFormat
) -> Iterator[Portion]:
    left = rows if max_bytes is None else max(1, min(rows, int(rows * max_bytes / max(size, 1))))
    with storage.open(path) as stream, pq.ParquetFile(stream) as file:
        for batch in read_batches(file, number, min(left, BATCH_ROWS) or 1, how):
            found = [*parse_table(batch.slice(0, left), how)]
            yield Portion(found, float(len(found)))
            left -= len(found)
            if not left:
                return


def _spots(files: Sequence[FileMetadata], how: RowFormat, max_bytes: int) -> Iterator[Portion]:
    ends = list(accumulate(file.size_in_bytes for file in files))
    span, distance = max_bytes // PORTIONS, ends[-1] / PORTIONS
    for number in range(PORTIONS):
        at = int(number * distance + (distance - span) / 2)
        file, end = next((file, end) for file, end in zip(files, ends, strict=True) if at < end)
        start = at - (end - file.size_in_bytes)
        with io.BufferedReader(storage.open(file.path)) as stream:  # type: ignore[type-var]
            match how.format:
                case "jsonl":
                    yield _lines_from(stream, start, span, file.size_in_bytes)
                case "csv":
                    yield _csv_from(stream, start, span, file.size_in_bytes, how)
                case _:
                    yield _avro_from(stream, start, span, how)


def _lines_from(stream: IO[bytes], start: int, span: int, size: int) -> Portion:
    """Reads every line that begins in the span, including the rest of the last one."""
    rows: list[Row | FailedRow] = []
    for line in read_lines(stream, start):
        if line.offset >= start + span:
            break
        rows += parse_line(line)
    return Portion(rows, float(min(span, size - start)))


def _csv_from(stream: IO[bytes], start: int, span: int, size: int, how: RowFormat) -> Portion:
    """Reads every row that begins in the span, whose beginning may be within quotes: the better parse is used."""
    # `str.splitlines` would also end a line at U+2028 and other characters that a name may have.
    options = how.csv
    head = io.StringIO(stream.read(_HEAD_BYTES).decode(options.codec, "replace"), newline="")
    header = islice(head, options.skiprows, None)
    names = options.names or tuple(next(csv.reader(header, **options.dialect)))
    inner = replace(how, csv=options.model_copy(update={"header": None, "names": names, "skiprows": 0}))
    stream.seek(start)
    decoder = codecs.getincrementaldecoder(options.encoding)(MARKED)  # the span may end within a character
    text = decoder.decode(stream.read(span))
    is_end = start + span >= size
    readings = [
        (opening + text, list(_csv_rows(opening + text, inner)))
        for opening in dict.fromkeys(("", options.quotechar or ""))
    ]
    text, rows = min(readings, key=lambda each: _faults(each[1][1 : None if is_end else -1]))
    begun = rows[1:]  # the first one begins before the span
    found = [row for row, _ in begun]
    if begun and not is_end:
        last = _whole_csv_row(text[begun[-1][1] :], stream, decoder, inner)
        found[-1:] = [] if last is None else [last]
    return Portion(found, min(span, size - start) * (len(found) / len(begun) if begun else 1.0))


def _csv_rows(text: str, how: RowFormat) -> Iterator[tuple[Row | FailedRow, int]]:
    """Yields the rows of a text, each with the position at which it begins."""
    lines, at = io.StringIO(text, newline=""), 0
    for row in parse_csv(lines, how):
        yield row, at
        at = lines.tell()


def _whole_csv_row(
    text: str, stream: IO[bytes], decoder: codecs.IncrementalDecoder, how: RowFormat
) -> Row | FailedRow | None:
    """Returns the row with which a text begins, of which the stream has the rest; `None` if it is too long."""
    more = _BLOCK_BYTES
    while len(text) <= 2 * _HEAD_BYTES:
        data = stream.read(more)
        text += decoder.decode(data)
        lines = io.StringIO(text, newline="")
        row = next(parse_csv(lines, how), None)
        if lines.tell() < len(text) or len(data) < more:
            return row
        more *= 2
    return None


def _faults(rows: Iterable[tuple[Row | FailedRow, int]]) -> int:
    return sum(isinstance(row, FailedRow) for row, _ in rows)


def _avro_from(stream: IO[bytes], start: int, span: int, how: RowFormat) -> Portion:
    """Reads the blocks of a span, of which one may end after it."""
    header, blocks = avro_blocks(stream, start, span)
    return Portion([*parse_avro(io.BytesIO(header + blocks), how)], float(len(blocks)))
