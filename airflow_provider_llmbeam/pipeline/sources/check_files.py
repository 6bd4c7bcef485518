"""Checks of the files of a source, before anything is sent."""

from __future__ import annotations

import io
import logging
import re
from contextlib import suppress
from pathlib import Path
from typing import Literal

import fastavro
from apache_beam.io.filesystem import CompressionTypes

from airflow_provider_llmbeam.exceptions import JobSpecError, SourceMissingError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.sources.lines import check_readable, open_plain
from airflow_provider_llmbeam.spec.source import FileFormat

_log = logging.getLogger("llmbeam")

#: Number of files that the log names.
_NAMED_FILES = 3
#: Bytes that are read at once of a file on Cloud Storage: its beginning is all that is looked at.
_BLOCK_BYTES = 64 * 2**10
#: A file name that does not begin as those do that Spark and Hive ignore.
_IS_DATA = re.compile(r"(^|/)[^/_.][^/]*$")
#: The start of an array of objects, or of an object whose first line is its brace.
_IS_JSON_DOCUMENT = re.compile(rb"(\xef\xbb\xbf)?\s*(\[\s*\{|\{[ \t]*\r?\n\s*\")")


def check_source(uri: str, file_format: FileFormat, on_missing: Literal["fail", "retry"] = "fail") -> None:
    """Checks that the source exists and can be read, and logs its files.

    Args:
        uri: A path or a glob.
        file_format: Format of the files.
        on_missing: See `spec.FilesSource`.

    Raises:
        SourceMissingError: No file matches, and `on_missing` is 'retry'.
        JobSpecError: No file matches, or one that matches cannot be read, or the filesystem rejects the request.
    """
    try:
        found = storage.find(uri)
    except Exception as error:
        raise JobSpecError(f"`source.uri` {uri!r} cannot be listed: {error}") from error
    if not found:
        missing = f"`source.uri` {uri!r} matches no file."
        if on_missing == "retry":
            raise SourceMissingError(f"{missing} `source.on_missing` is 'retry': a retry looks again.")
        raise JobSpecError(missing)
    if storage.is_local(uri) and Path(found[0].path).is_dir():
        raise JobSpecError(
            f"`source.uri` {uri!r} is a directory. Expected its files, e.g. '{uri.rstrip('/')}/*.{file_format}'."
        )
    names = ", ".join(repr(file.path) for file in found[:_NAMED_FILES])
    _log.info("Files of the source: %s (%s%s)", f"{len(found):,}", names, ", …" * (len(found) > _NAMED_FILES))
    # Others are markers, as `_SUCCESS`, or stand for a directory on Cloud Storage; all empty files are skipped.
    empty = [file.path for file in found if not file.size_in_bytes and _IS_DATA.search(file.path)]
    if empty and file_format in ("parquet", "avro"):
        raise JobSpecError(
            f"`source.uri` {uri!r}: {empty[0]!r} has 0 bytes, and a {file_format} file without rows has a schema. "
            "Write it again, or delete it."
        )
    filled = [file.path for file in found if file.size_in_bytes]
    check_readable(uri, filled)
    if file_format in ("parquet", "avro") and (packed := [path for path in filled if _has_compressed_name(path)]):
        raise JobSpecError(
            f"`source.uri` {uri!r}: {packed[0]!r} is compressed as a whole by its name, and a {file_format} file "
            "cannot be read so. Expand it, or rename it if only its contents are compressed."
        )
    if file_format == "avro" and filled:
        _check_avro(filled[0])
    if file_format == "jsonl" and filled:
        _check_json_lines(filled[0])


def _has_compressed_name(path: str) -> bool:
    return bool(CompressionTypes.detect_compression_type(path) != CompressionTypes.UNCOMPRESSED)


def _check_avro(path: str) -> None:
    """Checks that a file has records, as other values have no columns, and a codec that this environment has."""
    with open_plain(path, block_bytes=_BLOCK_BYTES) as file:
        try:
            blocks = fastavro.block_reader(file)
        except ValueError as error:
            raise JobSpecError(f"`source.uri`: {path!r}: {error}") from None
    schema, codec = blocks.writer_schema, blocks.codec
    try:
        fastavro.writer(io.BytesIO(), "null", [None], codec=codec)
    except ValueError as error:  # which names the package to install
        raise JobSpecError(
            f"`source.uri`: {path!r} is compressed with codec {codec!r}, which cannot be expanded: {error}. "
            "Install it here and on the workers, or write the file with codec 'deflate' or 'snappy'."
        ) from None
    branches = schema if isinstance(schema, list) else [schema]
    kinds = {str(branch["type"] if isinstance(branch, dict) else branch) for branch in branches}
    if others := sorted(kinds - {"record", "map"}):
        raise JobSpecError(
            f"`source.uri`: {path!r} has Avro values of type {others[0]!r}. Expected records, whose fields are "
            "the columns."
        )


def _check_json_lines(path: str) -> None:
    """Checks that a file is no array, and has one object per line; what only workers can read is left to them."""
    start = b""
    with suppress(Exception), open_plain(path, block_bytes=_BLOCK_BYTES) as file:
        start = file.read(1024)
    if _IS_JSON_DOCUMENT.match(start):
        raise JobSpecError(
            f"`source.uri`: {path!r} is a JSON array, or has objects of several lines. Expected JSON lines, with "
            "one object per line: `jq -c '.[]'` writes them from an array, `jq -c .` from objects."
        )
