"""The body of an upload: a file that is read while it is sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from airflow_provider_llmbeam.providers.errors import BatchRefusedError


class FileBody:
    """A file of a known size, between two parts of a multipart body.

    `requests` takes the size from `__len__`, and `http.client` reads piece by piece. Without a size the body would
    be sent in chunks, which the uploads of the providers do not support.

    Args:
        file: The file, at its beginning.
        size: Size of the file, in bytes.
        head: Sent before the file.
        tail: Sent after it.
    """

    def __init__(self, file: IO[bytes], size: int, head: bytes = b"", tail: bytes = b"") -> None:
        self._file = file
        self._size = size
        self._left = size
        self._head = head
        self._tail = tail
        self._length = len(head) + size + len(tail)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[bytes]:
        # `requests` recognises a stream by this method; it is `read` that is called.
        return iter(self.read, b"")

    def read(self, max_bytes: int = 2**16) -> bytes:
        """Returns the next piece; an empty one at the end.

        Raises:
            BatchRefusedError: The file has another size.
        """
        if self._head:
            piece, self._head = self._head, b""
        elif self._left:
            piece = self._file.read(min(max_bytes, self._left))
            self._left -= len(piece)
            if not piece or (not self._left and self._file.read(1)):
                raise BatchRefusedError(
                    f"The file has {'fewer' if self._left else 'more'} than {self._size} bytes, its size before "
                    "the upload."
                )
        else:
            piece, self._tail = self._tail, b""
        return piece
