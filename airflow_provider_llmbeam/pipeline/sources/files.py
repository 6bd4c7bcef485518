"""Rows of files: one reader per format, with a failed row for each invalid line."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.io import fileio

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.elements import FailedRow, Row, failed_row
from airflow_provider_llmbeam.spec.source import FileFormat, FilesSource

#: Maximum size of a CSV cell; the default of 131,072 characters would reject long documents.
csv.field_size_limit(64 * 2**20)

#: Half of a surrogate pair, as in texts truncated between the two escapes of an emoji. JSON can encode it, UTF-8
#: cannot: neither Beam nor a model server accepts it.
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def read(root: beam.Pipeline, source: FilesSource) -> beam.PCollection:
    """Reads the files of a source.

    Returns:
        `Row`s, and a `FailedRow` for each invalid line.

    Raises:
        JobSpecError: No file matches.
    """
    check_source(source.uri)
    return read_format(root, source.uri, source.resolved_format)


def read_format(root: beam.Pipeline, uri: str, file_format: FileFormat) -> beam.PCollection:
    """Adds the reader of a format to the graph."""
    match file_format:
        case "jsonl":
            lines = root | "Lines" >> beam.io.ReadFromText(uri, coder=BytesCoder(), validate=False)
            return lines | "ParseJson" >> beam.FlatMap(parse_json_line)
        case "csv":
            files = root | "Match" >> fileio.MatchFiles(uri) | "Open" >> fileio.ReadMatches()
            return files | "ParseCsv" >> beam.FlatMap(_read_csv_file)
        case "parquet":
            return root | "Parquet" >> beam.io.ReadFromParquet(uri)
        case "avro":
            return root | "Avro" >> beam.io.ReadFromAvro(uri)


def check_source(uri: str) -> None:
    """Checks that the source exists.

    Raises:
        JobSpecError: No file matches, or the filesystem rejects the request.
    """
    try:
        has_match = storage.has_match(uri)
    except Exception as error:
        raise JobSpecError(
            f"`source.uri` {uri!r} cannot be listed: {error} Nothing was sent or billed."
        ) from error
    if not has_match:
        raise JobSpecError(f"`source.uri` {uri!r} matches no file. Nothing was sent or billed.")


def parse_json_line(line: bytes) -> Iterator[Row | FailedRow]:
    """Parses one line; a blank one is skipped."""
    text = line.removeprefix(b"\xef\xbb\xbf").strip()
    if not text:
        return
    try:
        row = json.loads(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        yield _unreadable(line, f"not JSON: {error}")
        return
    if rb"\ud" in text.lower():
        row = json.loads(_LONE_SURROGATE.sub("\N{REPLACEMENT CHARACTER}", json.dumps(row, ensure_ascii=False)))
    yield row if isinstance(row, dict) else _unreadable(line, f"a JSON {type(row).__name__}, not an object")


def parse_csv(text: io.TextIOBase) -> Iterator[Row | FailedRow]:
    """Parses a file with a header; all values are text, as CSV has no types."""
    reader = csv.DictReader(text, strict=True)
    if twice := [name for name, count in Counter(reader.fieldnames or ()).items() if count > 1]:
        raise ValueError(f"the header names column {twice[0]!r} twice; one would hide the other")
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield _unreadable(b"", f"not CSV near line {reader.line_num}: {error}")
            continue
        if None in row or None in row.values():
            expected = len(reader.fieldnames or ())
            yield _unreadable(
                json.dumps(row, ensure_ascii=False).encode(),
                f"line {reader.line_num} does not have the {expected} cells of the header",
            )
        else:
            yield row


def _read_csv_file(file: fileio.ReadableFile) -> Iterator[Row | FailedRow]:
    with io.TextIOWrapper(file.open(), encoding="utf-8-sig", errors="replace", newline="") as text:
        yield from parse_csv(text)


def _unreadable(line: bytes, message: str) -> FailedRow:
    return failed_row({"llmbeam_raw": line.decode("utf-8", "backslashreplace")}, "unreadable_row", message)
