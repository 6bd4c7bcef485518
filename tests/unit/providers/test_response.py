from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.providers import http as limits
from airflow_provider_llmbeam.providers.access import FixedAccess
from airflow_provider_llmbeam.providers.http import HttpClient, Response, vector_bytes
from airflow_provider_llmbeam.providers.openai.client import error_of
from tests.replying import Received, Replying, raw

ANSWER = b'{"answer": 42}\n' * 10_000


def received(answer: bytes | Callable[[Received], Any], use: Callable[[Response], Awaitable[Any]]) -> Any:
    """Sends one request, and returns what `use` makes of the response, or its error."""

    async def main(url: str) -> Any:
        client = HttpClient(url, FixedAccess())
        try:
            async with client.post(url, {}) as response:
                return await use(response)
        except RequestError as error:
            return error
        finally:
            await client.aclose()

    with Replying((lambda _: answer) if isinstance(answer, bytes) else answer) as server:
        return asyncio.run(main(server.url))


def read(answer: Any, max_bytes: int = 2**20) -> Any:
    return received(answer, lambda response: response.read(max_bytes))


def lines(answer: Any) -> Any:
    async def use(response: Response) -> list[bytes]:
        return [line async for line in response.lines()]

    return received(answer, use)


@pytest.mark.parametrize("encoding", [None, "identity", "gzip", "x-gzip", "GZIP"])
def test_a_body_within_the_limit_is_read(encoding: str | None) -> None:
    headers = {} if encoding is None else {"Content-Encoding": encoding}
    body = gzip.compress(ANSWER) if encoding and "g" in encoding.lower()[:3] else ANSWER
    assert read(raw(body, **headers), len(ANSWER)) == ANSWER
    assert lines(raw(body, **headers)) == ANSWER.splitlines()


def test_only_gzip_is_asked_for() -> None:
    asked: list[str] = []
    read(lambda request: asked.append(request.headers["Accept-Encoding"]) or raw({}))
    assert asked == ["gzip"]


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_a_body_above_the_limit_is_garbage(compress: Callable[[bytes], bytes]) -> None:
    headers = {"Content-Encoding": "gzip"} if compress is gzip.compress else {}
    error = read(raw(compress(ANSWER), **headers), len(ANSWER) - 1)
    assert (error.kind, error.http_status) == ("garbage", 200)
    assert "of more than 149,999 bytes" in error.message


def endless(request: Received) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    for _ in range(1000):
        yield bytes(2**20)


def test_reading_an_endless_body_stops_at_the_limit() -> None:
    assert "of more than 1,048,576 bytes" in read(endless).message
    assert "a line of a streamed reply of more than 1,048,576 bytes" in lines(endless).message


def test_a_decompressed_piece_is_limited_whatever_its_ratio() -> None:
    """4 MB of gzip were 4 GB in memory."""
    bomb = gzip.compress(bytes(2**26))
    assert len(bomb) < 2**17
    pieces: list[int] = []

    async def use(response: Response) -> None:
        while piece := await response._body.readany():
            pieces.append(len(piece))

    received(raw(bomb, Content_Encoding="gzip"), use)
    assert sum(pieces) == 2**26
    assert max(pieces) == limits._PIECE_BYTES


@pytest.mark.parametrize(
    ("body", "encoding", "words"),
    [
        (zlib.compress(ANSWER), "deflate", "Content-Encoding 'deflate'"),
        (ANSWER, "br", "Content-Encoding 'br'"),
        (ANSWER, "gzip", "damaged gzip"),
        (gzip.compress(ANSWER)[:-8] + bytes(8), "gzip", "damaged gzip"),
        (gzip.compress(ANSWER)[:-9], "gzip", "gzip that is cut off"),
    ],
    ids=["deflate", "br", "no gzip", "a wrong sum", "cut off"],
)
def test_a_compression_that_cannot_be_read_is_garbage(body: bytes, encoding: str, words: str) -> None:
    for error in (read(raw(body, Content_Encoding=encoding)), lines(raw(body, Content_Encoding=encoding))):
        assert (error.kind, error.http_status) == ("garbage", 200)
        assert words in error.message


def test_bytes_after_the_end_of_the_compression_are_not_collected() -> None:
    def answer(_: Received) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\n" + gzip.compress(b"{}")
        for _ in range(1000):
            yield bytes(2**20)

    assert "after the end of its gzip" in read(answer).message


@pytest.mark.parametrize("headers", [{}, {"Content_Encoding": "gzip"}, {"Content_Encoding": "br"}])
@pytest.mark.parametrize("size", [10, 2**16, 2**20])
def test_of_an_error_the_beginning_is_read_and_no_more(size: int, headers: dict[str, str]) -> None:
    body = b"x" * size
    encoding = headers.get("Content_Encoding")
    content = gzip.compress(body) if encoding == "gzip" else body
    text = received(raw(content, 503, **headers), lambda response: response.error_text())
    assert text == ("" if encoding == "br" else "x" * min(size, limits.ERROR_BYTES))


def test_lines_are_split_wherever_their_pieces_end() -> None:
    def answer(_: Received) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
        for byte in b"data: a\n\r\n\ndata: bc\nrest":
            yield bytes([byte])

    assert lines(answer) == [b"data: a", b"\r", b"", b"data: bc", b"rest"]


def test_all_lines_together_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STREAM_BYTES", 1000)
    error = lines(raw(b"data: a\n" * 126))
    assert error.kind == "garbage"
    assert "a streamed reply of more than 1,000 bytes" in error.message
    assert len(lines(raw(b"data: a\n" * 125))) == 125


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("Fri, 01 Jan 2100 00:00:00 GMT", 86_400.0),
        ("nan", None),
    ],
)
def test_the_retry_delay_of_the_header_is_bounded(header: str, seconds: float | None) -> None:
    async def use(response: Response) -> float | None:
        return error_of(response.status, response.headers, "").retry_after_seconds

    assert received(raw({}, 429, Retry_After=header), use) == seconds


def test_vectors_of_the_largest_models_are_within_the_limit() -> None:
    number = len("-1.2345678901234567e-308, ")
    assert vector_bytes(2048, None) > 2048 * 4096 * number
    assert vector_bytes(1, 10_000) > 10_000 * number
