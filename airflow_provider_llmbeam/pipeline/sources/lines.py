"""Lines of files, in steps of bounded size: a line, compressed or not, may have gigabytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

from apache_beam.io.filebasedsource import FileBasedSource
from apache_beam.io.filesystem import CompressedFile, CompressionTypes

from airflow_provider_llmbeam.engine.value import value
from airflow_provider_llmbeam.pipeline import storage

#: Maximum size of a row in a text file, in bytes or characters. The longest context of today's models, 10 million
#: tokens, takes about 40 MB; parsed, a line of nothing but brackets takes 20 times its size.
MAX_ROW_SIZE = 64 * 2**20
#: Size of the beginning that is kept of a longer row.
SHOWN_SIZE = 1000

_BLOCK_BYTES = 2**20
#: Compressed bytes that are expanded at once, without a limit on the result. The default of Beam, 16 MiB, expands
#: to 16 GB of a gzip file, which has up to 1,032 bytes for each.
_COMPRESSED_BYTES = 4 * 2**10


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


class LinesSource(FileBasedSource):
    """Reads `Line`s of files, in parallel if they are not compressed.

    Beam's `ReadFromText` has no limit, and copies the beginning of a line once for each 8 KiB: 100 s for 1 GB.
    """

    def read_records(self, file_name: str, range_tracker: Any) -> Iterator[Line]:
        """Reads the lines that begin in a range."""
        with open_plain(file_name) as file:
            for line in read_lines(file, range_tracker.start_position()):
                if not range_tracker.try_claim(line.offset):
                    return
                yield line


def open_plain(path: str) -> IO[bytes]:
    """Opens a file for reading; one with the extension of a compression is expanded."""
    return plain(storage.open(path), path)


def plain(file: IO[bytes], path: str) -> IO[bytes]:
    """Returns a file that expands another one in small steps, if its path has the extension of a compression."""
    compression = CompressionTypes.detect_compression_type(path)
    if compression == CompressionTypes.UNCOMPRESSED:
        return file
    expanded: IO[bytes] = CompressedFile(file, compression, read_size=_COMPRESSED_BYTES)
    return expanded


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
