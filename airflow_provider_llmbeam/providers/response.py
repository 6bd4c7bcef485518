"""Responses of model servers, read within limits of size."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

import aiohttp

from airflow_provider_llmbeam.engine.retry import RequestError

#: Maximum size of a reply to one prompt. The longest answers of served models, 128k tokens, have 0.6 MB, and 3 MB
#: where each letter is escaped as \uXXXX and the reasoning is repeated. 128 such replies in flight have 1 GiB.
ANSWER_BYTES = 8 * 2**20
#: Maximum size per further prompt of the same request.
FURTHER_ANSWER_BYTES = 2**20
#: Maximum size per number of a vector, which has at most 25 characters, and dimensions if the spec sets none: the
#: largest embedding models have 4,096.
_NUMBER_BYTES = 32
_DIMENSIONS = 4096
#: An error of Google with all its details has some kB; the rest of a longer one is not read.
ERROR_BYTES = 64 * 2**10
#: Maximum size of a line of a streamed answer, and of all lines: 128k tokens in chunks of 300 bytes, as vLLM sends
#: them, have 40 MB, of which only the texts are kept.
LINE_BYTES = 2**20
STREAM_BYTES = 128 * 2**20
#: Maximum size of a decompressed piece: 1 kB of gzip may become 1 MB.
_PIECE_BYTES = 64 * 2**10


def vector_bytes(texts: int, dimensions: int | None) -> int:
    """Returns the maximum size of a reply with vectors.

    Args:
        texts: Number of texts.
        dimensions: Requested dimensions, or `None`.
    """
    return FURTHER_ANSWER_BYTES + texts * _NUMBER_BYTES * max(dimensions or 0, _DIMENSIONS)


class Response:
    """A response of which only the status and headers have been read.

    Args:
        response: The response; its session does not decompress.
    """

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        encoding = response.headers.get("Content-Encoding", "").strip().lower()
        self._body: _Body = response.content
        if encoding and encoding != "identity":
            self._body = _Gunzip(response.content, encoding)

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers."""
        return self._response.headers

    async def read(self, max_bytes: int = ANSWER_BYTES) -> bytes:
        """Returns the body of a successful response.

        Args:
            max_bytes: Maximum size of the decompressed body.

        Raises:
            RequestError: The body is larger, or its compression is damaged.
        """
        body = bytearray()
        while piece := await self._body.readany():
            body += piece
            if len(body) > max_bytes:
                raise self._too_large("a reply", max_bytes)
        return bytes(body)

    async def error_text(self) -> str:
        """Returns the beginning of the body of an error response, of at most `ERROR_BYTES`."""
        body = bytearray()
        with contextlib.suppress(RequestError):  # the status matters more than a damaged body
            while len(body) < ERROR_BYTES and (piece := await self._body.readany()):
                body += piece
        if len(body) >= ERROR_BYTES:
            self._response.close()
        return body[:ERROR_BYTES].decode("utf-8", "replace")

    async def lines(self) -> AsyncIterator[bytes]:
        """Yields the lines of a streamed body, without their ends.

        Raises:
            RequestError: A line, or all of them, are too large, or the compression is damaged.
        """
        rest = bytearray()
        size = 0
        while piece := await self._body.readany():
            size += len(piece)
            if size > STREAM_BYTES:
                raise self._too_large("a streamed reply", STREAM_BYTES)
            searched = len(rest)
            rest += piece
            while (end := rest.find(b"\n", searched)) >= 0:
                line = bytes(rest[:end])
                del rest[: end + 1]
                searched = 0
                if end > LINE_BYTES:
                    raise self._too_large("a line of a streamed reply", LINE_BYTES)
                yield line
            if len(rest) > LINE_BYTES:
                raise self._too_large("a line of a streamed reply", LINE_BYTES)
        if rest:
            yield bytes(rest)

    def _too_large(self, what: str, limit: int) -> RequestError:
        self._response.close()
        message = f"{what} of more than {limit:,} bytes, which is the most that is read"
        return RequestError("garbage", message, http_status=self.status)


class _Body(Protocol):
    async def readany(self) -> bytes:
        """Returns the next bytes; nothing at the end."""
        ...


class _Gunzip:
    """A body that is compressed with gzip, decompressed in pieces of limited size.

    aiohttp limits such pieces only since 3.14; before, each piece became up to a thousand times as large.
    """

    def __init__(self, body: _Body, encoding: str) -> None:
        self._body = body
        self._encoding = encoding
        self._gzip = zlib.decompressobj(16 + zlib.MAX_WBITS)
        self._has_begun = self._has_more = False

    async def readany(self) -> bytes:
        if self._encoding not in ("gzip", "x-gzip"):
            raise _damaged(f"with Content-Encoding {self._encoding[:40]!r}, although only gzip is accepted")
        while True:
            compressed = self._gzip.unconsumed_tail if self._has_more else await self._body.readany()
            if not compressed and not self._has_more:
                if self._has_begun and not self._gzip.eof:
                    raise _damaged("with gzip that is cut off")
                return b""
            self._has_begun = True
            if self._gzip.eof:
                raise _damaged("with bytes after the end of its gzip")
            try:
                piece = self._gzip.decompress(compressed, _PIECE_BYTES)
            except zlib.error as error:
                raise _damaged(f"with damaged gzip: {error}") from None
            # A full piece may leave output within zlib although all input is consumed.
            self._has_more = len(piece) == _PIECE_BYTES and not self._gzip.eof
            if piece:
                return piece


def _damaged(fault: str) -> RequestError:
    return RequestError("garbage", f"a reply {fault}", http_status=200)
