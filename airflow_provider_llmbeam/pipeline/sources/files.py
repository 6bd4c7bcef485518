"""Rows of files: one reader per format, with a failed row for each invalid line."""

from __future__ import annotations

import codecs
import csv
import io
import json
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import IO, Any

import apache_beam as beam
import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.elements import PLACE, FailedRow, Row, failed_row
from airflow_provider_llmbeam.pipeline.records import with_types
from airflow_provider_llmbeam.pipeline.sources.check_files import check_source
from airflow_provider_llmbeam.pipeline.sources.lines import (
    MAX_ROW_SIZE,
    PART_BYTES,
    SHOWN_SIZE,
    FilePart,
    Line,
    byte_parts,
    open_plain,
    read_part,
)
from airflow_provider_llmbeam.spec.characters import valid_value
from airflow_provider_llmbeam.spec.nesting import MAX_DEPTH, text_depth_exceeds
from airflow_provider_llmbeam.spec.source import CsvOptions, FileFormat, FilesSource
from airflow_provider_llmbeam.spec.typed_values import BinaryText

_log = logging.getLogger("llmbeam")

#: Rows of a Parquet file that are read at once.
BATCH_ROWS = 1000
#: Maximum size of a CSV cell; the default of 131,072 characters would reject long documents.
csv.field_size_limit(MAX_ROW_SIZE)

#: Delimiters other than the given one, by which a header of one column is recognised as a mistake.
_DELIMITERS = (";", "\t", "|", ",")
#: How bytes that the encoding of a file does not have are decoded: as half of a surrogate pair, which marks their
#: row, and which no decoder returns otherwise. With U+FFFD in its place a file in another encoding would be sent.
MARKED = "llmbeam-marked"
_MARK = "\udcff"
codecs.register_error(MARKED, lambda error: (_MARK, error.end))  # type: ignore[attr-defined]


_USUAL = CsvOptions()


@dataclass(frozen=True)
class RowFormat:
    """How rows are read.

    Attributes:
        format: Format of the files.
        csv: How CSV files are written.
        used: Columns that the job uses; `None` for all. Others spoil no row: what cannot be read is left out.
        has_places: Whether each row has its place, see `PLACE`.
    """

    format: FileFormat
    csv: CsvOptions = _USUAL
    used: frozenset[str] | None = None
    has_places: bool = False

    def uses(self, column: str) -> bool:
        """Returns whether the job uses a column."""
        return self.used is None or column in self.used


def read(root: beam.Pipeline, source: FilesSource, used: frozenset[str] | None = None) -> beam.PCollection:
    """Reads the files of a source.

    Args:
        root: The pipeline.
        source: The source.
        used: See `RowFormat`.

    Returns:
        `Row`s, and a `FailedRow` for each invalid line.

    Raises:
        JobSpecError: No file matches, or one that matches cannot be read.
    """
    check_source(source.uri, source.resolved_format, source.on_missing)
    how = RowFormat(source.resolved_format, source.csv, used, source.picks_by_order)
    return read_format(root, source.uri, how)


def read_format(root: beam.Pipeline, uri: str, how: RowFormat) -> beam.PCollection:
    """Adds the reader of a format to the graph."""
    return file_parts(root, uri, how.format) | "Parse" >> beam.FlatMap(
        _placed_rows if how.has_places else _rows, how
    )


def file_parts(root: beam.Pipeline, uri: str, file_format: FileFormat) -> beam.PCollection:
    """Finds the files of a path or glob; each part of one is read by one worker, in parallel to the others."""
    return root | "Uri" >> beam.Create([uri]) | "Find" >> beam.FlatMap(_parts, file_format) | beam.Reshuffle()


def _parts(uri: str, file_format: FileFormat) -> Iterator[FilePart]:
    for file in storage.find(uri):
        if not file.size_in_bytes:
            continue
        match file_format:
            case "jsonl" | "avro":
                yield from byte_parts(file.path, file.size_in_bytes)
            case "parquet":
                with storage.open(file.path) as stream:
                    groups = pq.read_metadata(stream).num_row_groups
                yield from ((file.path, number) for number in range(groups))
            case _:
                yield file.path, 0


def _placed_rows(part: FilePart, how: RowFormat) -> Iterator[Row | FailedRow]:
    for number, row in enumerate(_rows(part, how)):
        yield row if isinstance(row, FailedRow) else {**row, PLACE: (*part, number)}


def _rows(part: FilePart, how: RowFormat) -> Iterator[Row | FailedRow]:
    path, number = part
    match how.format:
        case "jsonl":
            for line in read_part(part):
                yield from parse_line(line)
        case "csv":
            with io.TextIOWrapper(open_plain(path), how.csv.codec, MARKED, newline="") as text:
                yield from parse_csv(text, how, path)
        case "parquet":
            with storage.open(path) as stream, pq.ParquetFile(stream) as file:
                for batch in read_batches(file, number, BATCH_ROWS, how):
                    yield from parse_table(batch, how)
        case "avro":
            with storage.open_buffered(path) as stream:
                yield from parse_avro(io.BytesIO(b"".join(avro_blocks(stream, number, PART_BYTES))), how)


def parse_line(line: Line) -> Iterator[Row | FailedRow]:
    """Parses one line of a JSON lines file, which may be a dead letter; a blank one is skipped."""
    if not line.is_complete:
        yield _unreadable(line.text, f"a line of {line.size:,} bytes; at most {MAX_ROW_SIZE:,} are read")
        return
    for row in parse_json_line(line.text):
        yield row if isinstance(row, FailedRow) else with_types(row)


def parse_json_line(line: bytes) -> Iterator[Row | FailedRow]:
    """Parses one line; a blank one is skipped."""
    text = line.removeprefix(b"\xef\xbb\xbf").strip()
    if not text:
        return
    try:
        row = json.loads(text.decode())
    except UnicodeDecodeError as error:
        yield _unreadable(line, f"not UTF-8, as JSON is: {error.reason} at byte {error.start}")
        return
    except (ValueError, RecursionError) as error:
        yield _unreadable(line, f"not JSON: {error}")
        return
    if text_depth_exceeds(text, row):
        yield _unreadable(line, f"nested more than {MAX_DEPTH} levels deep")
        return
    if rb"\ud" in text.lower():
        row = valid_value(row)
    yield row if isinstance(row, dict) else _unreadable(line, f"a JSON {type(row).__name__}, not an object")


class _CsvLines:
    """Lines of a CSV file. A quoted cell may have many, so those of the current row are kept for its failure."""

    def __init__(self, text: io.TextIOBase) -> None:
        self._text = text
        self._number = 0
        self.begin_row()

    def skip(self, count: int) -> None:
        """Skips lines before the first row."""
        for _ in range(count):
            line = self._text.readline(_SKIPPED_SIZE)
            while line and not line.endswith(("\n", "\r")):
                line = self._text.readline(_SKIPPED_SIZE)
        self._number += count
        self.begin_row()

    def begin_row(self) -> None:
        self._row: list[str] = []
        self._first = self._number + 1
        self._size = 0
        self.is_marked = False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._text.readline(MAX_ROW_SIZE + 1)
        if not line:
            raise StopIteration
        self._number += 1
        self._size += len(line)
        self.is_marked |= _MARK in line
        self._row.append(line)
        if self._size > MAX_ROW_SIZE:
            self._row = ["".join(self._row)[:SHOWN_SIZE]]
            self._skip(line)
            raise csv.Error(f"{self._size:,} characters; at most {MAX_ROW_SIZE:,} are read")
        return line

    def _skip(self, line: str) -> None:
        """Skips the rest of a line, or of the file if the row has several lines: it is within quotes then."""
        is_quoted = self._number > self._first
        while line and (is_quoted or not line.endswith(("\n", "\r"))):
            line = self._text.readline(_SKIPPED_SIZE)
            self._size += len(line)
            self._number += is_quoted and line.endswith("\n")

    def failed(self, message: object) -> FailedRow:
        """Returns a failed row with the text of the current row."""
        until = f" (up to line {self._number})" if self._number > self._first else ""
        text = "".join(self._row).replace(_MARK, "\ufffd")
        return _unreadable(text.encode(), f"not CSV near line {self._first}{until}: {message}")


_SKIPPED_SIZE = 2**20


def parse_csv(
    text: io.TextIOBase, how: RowFormat = RowFormat("csv"), path: str | None = None
) -> Iterator[Row | FailedRow]:
    """Parses a file; all values are text, as CSV has no types.

    The row of a quote that is never closed has all lines after it: which of them were meant as rows is not known,
    and a part of a text must not be sent to a model as a row. A spreadsheet may have columns without a name, rows
    of empty cells, and empty cells after the last column, which are not read; the log has the number of such rows.

    Args:
        text: The file; a row with bytes that were decoded as `MARKED` has failed.
        how: How it is written.
        path: Its path, for errors.

    Raises:
        JobSpecError: The header is not valid.
    """
    options, lines = how.csv, _CsvLines(text)
    lines.skip(options.skiprows)
    reader = csv.DictReader(lines, options.names or None, strict=True, **options.dialect)
    try:
        if options.names and options.header is not None:
            next(reader.reader, None)
        names = reader.fieldnames or ()
    except csv.Error as error:
        raise _header_error(path, f"is not CSV: {error}.") from None
    if lines.is_marked:
        raise _header_error(path, f"has bytes that are no {options.encoding}: set `source.csv.encoding`.")
    repeated = {name for name, count in Counter(names).items() if count > 1}
    nameless = {None, *(name for name in repeated if not name.strip())}
    if twice := [name for name in names if name in repeated - nameless and how.uses(name)]:
        raise _header_error(path, f"names column {twice[0]!r} twice; one would hide the other.")
    if len(names) == 1 and (signs := [sign for sign in _DELIMITERS if sign in names[0]]):
        raise _header_error(
            path,
            f"is the one column {names[0]!r}: expected {options.delimiter!r} between columns. If it is "
            f"{signs[0]!r}, set `source.csv.delimiter` to {signs[0]!r}.",
        )
    empty = 0
    while True:
        lines.begin_row()
        try:
            row = next(reader)
        except StopIteration:
            if empty and path is not None:
                _log.warning("%r has %s rows with empty cells alone, which are not read.", path, f"{empty:,}")
            return
        except csv.Error as error:
            yield lines.failed(error)
            continue
        if lines.is_marked:
            yield lines.failed(f"has bytes that are no {options.encoding}: set `source.csv.encoding`")
        elif not any(map(_is_filled, row.values())):
            empty += 1
        elif _is_filled(row.get(None)) or None in row.values():
            yield _unreadable(
                json.dumps(row, ensure_ascii=False).encode(),
                f"line {reader.line_num} does not have the {len(names)} cells of the header",
            )
        else:
            yield {name: cell for name, cell in row.items() if name not in nameless}


def _is_filled(cells: str | list[str] | None) -> bool:
    """Returns whether a cell has a text, or one of those after the last column."""
    return bool("".join(cells or ()).strip())


def _header_error(path: str | None, fault: str) -> JobSpecError:
    uri = "" if path is None else f" {path!r}"
    return JobSpecError(f"`source.uri`{uri}: the header {fault}")


#: Errors of a text that is not UTF-8, of a date after the year 9999, and of a time zone that does not exist.
_UNREADABLE = (ValueError, OverflowError, LookupError)


def avro_blocks(stream: IO[bytes], start: int, size: int) -> tuple[bytes, bytes]:
    """Returns the header of a file, and its blocks after the first marker of a part, up to the first one after it.

    Each block of a file is in one of its parts. The marker is 16 random bytes, with which the header ends as well.
    """
    stream.seek(0)
    header: Any = fastavro.reader(stream)
    end, marker = stream.tell(), header._header["sync"]
    first, last = (_after_marker(stream, marker, max(at, end - len(marker))) for at in (start, start + size))
    stream.seek(0)
    head = stream.read(end)
    stream.seek(first)
    return head, stream.read(last - first)


def _after_marker(stream: IO[bytes], marker: bytes, start: int) -> int:
    """Returns the position after the first marker that begins at a position or after it; else the end."""
    stream.seek(start)
    kept = b""
    while data := stream.read(_SEARCHED_SIZE):
        found = (kept + data).find(marker)
        if found >= 0:
            return start + found + len(marker)
        rest = (kept + data)[-len(marker) + 1 :]
        start += len(kept) + len(data) - len(rest)
        kept = rest
    return start + len(kept)


_SEARCHED_SIZE = 2**16


def parse_avro(stream: IO[bytes], how: RowFormat) -> Iterator[Row | FailedRow]:
    """Reads the records of a file; a record with a value that is too large has failed.

    If a value cannot be read, the records from there on have the used columns alone.

    Raises:
        JobSpecError: A value of a used column cannot be read.
    """
    reader: Any = fastavro.reader(stream)
    count = 0
    try:
        for row in reader:
            yield _readable(row, how)
            count += 1
    except _UNREADABLE as error:
        schema = reader.writer_schema
        if how.used is None:
            raise _unreadable_column("an Avro file", error) from None
        fields = [field for field in schema["fields"] if how.uses(field["name"])]
        stream.seek(0)
        try:
            rest: Any = islice(fastavro.reader(stream, {**schema, "fields": fields}), count, None)
            yield from (_readable(row, how) for row in rest)
        except _UNREADABLE as other:
            raise _unreadable_column("an Avro file", other) from None


def read_batches(file: pq.ParquetFile, number: int, size: int, how: RowFormat) -> Iterator[pa.RecordBatch]:
    """Reads a row group in batches, without unused columns that cannot be read."""
    done = 0
    try:
        for batch in file.iter_batches(size, [number]):
            yield batch
            done += batch.num_rows
    except pa.ArrowException:
        yield from _read_group(file, number, how).slice(done).to_batches(size)


def _read_group(file: pq.ParquetFile, number: int, how: RowFormat) -> pa.Table:
    """Reads a row group, without unused columns that cannot be read, such as lists of one length with nulls."""
    with suppress(pa.ArrowException):
        return file.read_row_group(number)
    columns = {}
    for name in file.schema_arrow.names:
        try:
            columns[name] = file.read_row_group(number, [name]).column(0)
        except pa.ArrowException as error:
            if how.uses(name):
                raise _unreadable_column(f"column {name!r} of a Parquet file", error) from None
    return pa.table(columns)


def _unreadable_column(what: str, error: Exception) -> JobSpecError:
    return JobSpecError(f"`source.uri`: {what} cannot be read: {error}.")


def parse_table(table: Any, how: RowFormat = RowFormat("parquet")) -> Iterator[Row | FailedRow]:
    """Converts an Arrow table or batch to rows; one with a value that is too large, or none of Python, has failed.

    Text is often stored in a column of type `binary`: what is UTF-8 there becomes text, and the rest stays bytes.

    Raises:
        JobSpecError: Two columns have one name.
    """
    if twice := [name for name, count in Counter(table.schema.names).items() if count > 1 and how.uses(name)]:
        raise JobSpecError(f"`source.uri`: a Parquet file has two columns {twice[0]!r}; one would hide the other.")
    columns: dict[str, list[Any]] = {}
    has_faults = False
    for name, column in zip(table.schema.names, table.columns, strict=True):
        try:
            columns[name] = _values(column)
        except _UNREADABLE:
            columns[name] = [_cell(value) for value in column]
            has_faults = True
        if _has_binary(column.type):
            columns[name] = [*map(_with_texts, columns[name])]
    for number in range(table.num_rows):
        row = {name: cells[number] for name, cells in columns.items()}
        yield _readable(row, how, has_faults=has_faults)


def _readable(row: Row, how: RowFormat, *, has_faults: bool = False) -> Row | FailedRow:
    """Returns a row whose cells could be read, and are no larger than a text file may have; else a failed row."""
    large = {
        name: _Fault(f"{size:,} bytes or characters; at most {MAX_ROW_SIZE:,} are read")
        for name, cell in row.items()
        if (size := _size(cell)) > MAX_ROW_SIZE
    }
    return _without_faults({**row, **large}, how) if large or has_faults else row


def _size(cell: Any) -> int:
    """Returns the number of bytes and characters of the texts in a cell."""
    if isinstance(cell, (str, bytes)):
        return len(cell)
    if isinstance(cell, (list, tuple)):
        return sum(map(_size, cell))
    return sum(map(_size, cell.values())) if isinstance(cell, dict) else 0


class _Fault(str):
    """The reason why a cell cannot be read."""

    __slots__ = ()


def _has_binary(kind: pa.DataType) -> bool:
    """Returns whether a type is, or contains, binary values of any length; those of one length are no text."""
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return True
    if pa.types.is_struct(kind):
        return any(_has_binary(field.type) for field in kind)
    if pa.types.is_map(kind):
        return _has_binary(kind.key_type) or _has_binary(kind.item_type)
    inner = getattr(kind, "value_type", None)  # of a list, or of a dictionary
    return inner is not None and _has_binary(inner)


def _with_texts(cell: Any) -> Any:
    """Returns a cell in which bytes that are text have become text."""
    match cell:
        case bytes():
            with suppress(UnicodeDecodeError):
                return BinaryText(cell.decode())
        case list() | tuple():
            return type(cell)(map(_with_texts, cell))
        case dict():
            return {name: _with_texts(inner) for name, inner in cell.items()}
    return cell


def _values(column: Any) -> list[Any]:
    """Returns the values of a column; a time with nanoseconds is text in ISO 8601, with pandas and without it."""
    if not pa.types.is_timestamp(column.type) or column.type.unit != "ns":
        return [*column.to_pylist()]
    counts = column.cast(pa.int64()).to_pylist()
    micros = pa.array([None if count is None else count // 1000 for count in counts], pa.int64())
    times = micros.cast(pa.timestamp("us", column.type.tz)).to_pylist()
    return [
        _with_nanoseconds(time, count % 1000) if count else time for time, count in zip(times, counts, strict=True)
    ]


def _with_nanoseconds(time: datetime, nanoseconds: int) -> datetime | str:
    text, microseconds = time.isoformat("T", "microseconds"), len("2000-01-01T00:00:00.000000")
    return f"{text[:microseconds]}{nanoseconds:03}{text[microseconds:]}" if nanoseconds else time


def _cell(value: Any) -> Any:
    try:
        return value.as_py()
    except _UNREADABLE as error:
        return _Fault(error)


def _without_faults(row: Row, how: RowFormat) -> Row | FailedRow:
    rest = {name: cell for name, cell in row.items() if not isinstance(cell, _Fault)}
    faults = [(name, cell) for name, cell in row.items() if name not in rest and how.uses(name)]
    if not faults:
        return rest
    name, fault = faults[0]
    text = json.dumps(rest, ensure_ascii=False, default=str)
    return _unreadable(text.encode("utf-8", "replace"), f"column {name!r} cannot be read: {fault}")


def _unreadable(line: bytes, message: str) -> FailedRow:
    return failed_row({"llmbeam_raw": line.decode("utf-8", "backslashreplace")}, "unreadable_row", message)
