"""Lines of files, in steps of bounded size: a line, compressed or not, may have gigabytes."""

from __future__ import annotations

import bz2
import io
import lzma
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

import zstandard
from apache_beam.io.filesystem import CompressionTypes

from airflow_provider_llmbeam.engine.value import value
from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError
from airflow_provider_llmbeam.pipeline import storage

#: Maximum size of a row in a text file, in bytes or characters. The longest context of today's models, 10 million
#: tokens, takes about 40 MB; parsed, a line of nothing but brackets takes 20 times its size.
MAX_ROW_SIZE = 64 * 2**20
#: Size of the beginning that is kept of a longer row.
SHOWN_SIZE = 1000

#: A part of a file that one worker reads: its path and, by format, the position of its first byte, the number of
#: its row group, or 0.
FilePart = tuple[str, int]
#: Size of a part of a file with lines or of an Avro file, in bytes.
PART_BYTES = 16 * 2**20
_BLOCK_BYTES = 2**20
#: Compressed bytes that are expanded at once, without a limit on the result: a gzip file has up to 1,032 bytes for
#: each.
_COMPRESSED_BYTES = 4 * 2**10

_EXPANDERS: dict[str, Callable[[], Any]] = {
    CompressionTypes.BZIP2: bz2.BZ2Decompressor,
    CompressionTypes.DEFLATE: zlib.decompressobj,
    CompressionTypes.GZIP: lambda: zlib.decompressobj(zlib.MAX_WBITS | 16),
    CompressionTypes.LZMA: lzma.LZMADecompressor,
    # The window of files that `zstd --long=31` writes, which Beam accepts as well.
    CompressionTypes.ZSTD: lambda: zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj(),
}
_BZIP2 = b"BZh91AY&SY"
#: First bytes of compressed files, which no text has: but for those of bzip2 they are no UTF-8.
_BEGINNINGS = {
    b"\x1f\x8b\x08": CompressionTypes.GZIP,
    _BZIP2: CompressionTypes.BZIP2,
    b"\xfd7zXZ\0": CompressionTypes.LZMA,
    b"\x28\xb5\x2f\xfd": CompressionTypes.ZSTD,
}
_HEAD_BLOCK_BYTES = 64 * 2**10


@value()
class Line:
    """A line without its end.

    Attributes:
        offset: Position of its first byte in the uncompressed file.
        size: Size in bytes.
        text: The line; only its beginning if it is longer than the limit.
    """

    offset: int
    size: int
    text: bytes

    @property
    def is_complete(self) -> bool:
        """Whether `text` is the whole line."""
        return len(self.text) == self.size


def byte_parts(path: str, size_bytes: int) -> Iterator[FilePart]:
    """Returns the parts of a file that are read in parallel; the first one of a compressed file has all lines."""
    return ((path, start) for start in range(0, size_bytes, PART_BYTES))


def read_part(part: FilePart, part_bytes: int = PART_BYTES) -> Iterator[Line]:
    """Reads the lines that begin in a part of a file.

    Beam's `ReadFromText` has no limit, and copies the beginning of a line once for each 8 KiB: 100 s for 1 GB.
    """
    path, start = part
    with open_plain(path) as file:
        is_expanded = isinstance(file, _Expanded)
        if is_expanded and start:
            return
        end = math.inf if is_expanded else start + part_bytes
        for line in read_lines(file, start):
            if line.offset >= end:
                return
            yield line


def open_plain(path: str, *, block_bytes: int | None = None) -> IO[bytes]:
    """Opens a file for reading, see `storage.open`; one that is compressed is expanded."""
    return plain(storage.open(path, block_bytes=block_bytes), path)


def check_readable(uri: str, paths: Sequence[str]) -> None:
    """Checks that this user may read local files; those of object stores may be readable by the workers alone.

    Args:
        uri: The path or glob of the source, for the error.
        paths: The files that match it.

    Raises:
        JobSpecError: One cannot be read.
    """
    if not storage.is_local(uri):
        return
    for path in paths:
        try:
            Path(path).open("rb").close()
        except PermissionError as error:
            which = "" if path == uri else f" {path!r}:"
            raise JobSpecError(f"`source.uri` {uri!r}:{which} {error.strerror}.") from error


def is_compressed(path: str) -> bool:
    """Returns whether a file is compressed, by its name or its first bytes."""
    with open_plain(path, block_bytes=_HEAD_BLOCK_BYTES) as file:
        return isinstance(file, _Expanded)


def plain(file: IO[bytes], path: str) -> IO[bytes]:
    """Returns a file, expanded in small steps if it is compressed by its name or its first bytes."""
    kind = CompressionTypes.detect_compression_type(path)
    if kind == CompressionTypes.UNCOMPRESSED:
        file = buffered = io.BufferedReader(cast("io.RawIOBase", file))  # to seek back would read a block again
        head = buffered.peek(len(_BZIP2))
        kind = next((kind for begin, kind in _BEGINNINGS.items() if head.startswith(begin)), kind)
    if kind == CompressionTypes.UNCOMPRESSED:
        return file
    return cast("IO[bytes]", _Expanded(file, path, _EXPANDERS[kind]))


class _Expanded(io.RawIOBase):
    """Expands a file in small steps, one compressed part, e.g. a member of gzip, after the other.

    Beam's `CompressedFile` takes the end of a file that was cut off for the end of its rows (2.77), and by default
    expands 16 MiB at once.

    Args:
        file: The stored file.
        path: Its path, for errors.
        expander: Makes the decompressor of a part.
    """

    def __init__(self, file: IO[bytes], path: str, expander: Callable[[], Any]) -> None:
        super().__init__()
        self._file, self._path, self._expander = file, path, expander
        self._part: Any = None
        self._stored = b""
        self._found = io.BytesIO()

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        """Reads some bytes; fewer than `size` also before the end.

        Raises:
            JobFailedError: The file is incomplete; it may be complete later.
            JobSpecError: The file is damaged.
        """
        if size is None or size < 0:
            return self.readall()
        while not (found := self._found.read(size)) and size:
            if not (stored := self._stored or self._file.read(_COMPRESSED_BYTES)):
                if self._part is not None and not self._part.eof:
                    raise JobFailedError(
                        f"`source.uri`: {self._path!r} ends within its compressed data, so that rows are missing: "
                        "it is still being written, or its upload was interrupted. Nothing was sent or billed."
                    )
                break
            self._expand(stored)
        return found

    def _expand(self, stored: bytes) -> None:
        self._stored = b""
        if self._part is None or self._part.eof:
            stored = stored.lstrip(b"\0")  # zeros after a part fill a block, e.g. of a tape, and no part begins so
            if not stored:
                return
            self._part = self._expander()
        try:
            self._found = io.BytesIO(self._part.decompress(stored))
        except (zlib.error, lzma.LZMAError, zstandard.ZstdError, OSError) as error:
            raise JobSpecError(
                f"`source.uri`: {self._path!r} cannot be expanded: {error}. Write it again."
            ) from None
        if self._part.eof:
            self._stored = self._part.unused_data

    def close(self) -> None:
        self._file.close()
        super().close()


def read_lines(
    file: IO[bytes], start: int = 0, max_size: int = MAX_ROW_SIZE, *, block_size: int = _BLOCK_BYTES
) -> Iterator[Line]:
    r"""Reads the lines that begin at a position or after it, and end in `\n` or `\r\n`.

    Args:
        file: The file, at its beginning.
        start: The position; the rest of a line that begins before is skipped.
        max_size: Maximum size of a line, in bytes, to be read completely.
        block_size: Bytes that are read at once, so at most as many beyond the last line that is taken.
    """
    if start:
        file.seek(start - 1)
    is_skipped = start > 0
    offset, size, parts = max(0, start - 1), 0, list[bytes]()
    while block := file.read(block_size):
        for number, part in enumerate(block.split(b"\n")):
            if number:
                if not is_skipped:
                    yield _line(offset, size, parts, max_size)
                is_skipped = False
                offset, size, parts = offset + size + 1, 0, []
            size += len(part)
            if size <= max_size or not parts:
                parts.append(part)
            else:
                parts = [b"".join(parts)[:SHOWN_SIZE]]
    if size and not is_skipped:
        yield _line(offset, size, parts, max_size)


def _line(offset: int, size: int, parts: list[bytes], max_size: int) -> Line:
    text = b"".join(parts) if size <= max_size else b"".join(parts)[:SHOWN_SIZE]
    if text.endswith(b"\r") and len(text) == size:
        return Line(offset, size - 1, text[:-1])
    return Line(offset, size, text)
