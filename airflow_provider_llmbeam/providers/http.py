"""The asynchronous HTTP client of backends: requests, responses within limits of size, streamed answers.

Its errors are `RequestError`.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import ssl
import urllib.request
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import aiohttp
from google.auth.exceptions import GoogleAuthError
from requests.utils import should_bypass_proxies

from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.providers.access import Access, secrets_in, tls_context
from airflow_provider_llmbeam.redaction import redact
from airflow_provider_llmbeam.transport.google_auth import is_transient_token_error
from airflow_provider_llmbeam.transport.redirects import redirect_behind
from airflow_provider_llmbeam.transport.server_reply import REDIRECTS, redirect_refusal, request_id

#: Timeout of a new connection: a firewall that drops packets makes an address that cannot be reached, not a slow
#: answer.
CONNECT_SECONDS = 10.0


class HttpClient:
    """An aiohttp session, opened on first use by the event loop that uses it.

    Args:
        address: Address of the server.
        access: Authentication headers.
        headers: Other headers of each request.
        certificate: Files of a client's certificate and its key, for mutual TLS.

    Raises:
        JobSpecError: A file of the certificate cannot be used.
    """

    def __init__(
        self,
        address: str,
        access: Access,
        headers: Mapping[str, str] | None = None,
        certificate: tuple[str, str] | None = None,
    ) -> None:
        self._address = address
        self._tls = None if certificate is None else tls_context(certificate)
        self._access = access
        self._headers = headers or {}
        self._session: aiohttp.ClientSession | None = None
        self._renewing = asyncio.Lock()

    @asynccontextmanager
    async def post(self, url: str, body: Mapping[str, Any] | bytes) -> AsyncIterator[Response]:
        """Sends one request; after a 401 once more with a renewed token, if there is one.

        A redirect is not followed: a 307 or 308 would send the prompts, and any the key, to another server.

        Args:
            url: Address of the method.
            body: Value that is encoded as JSON, or encoded JSON.

        Raises:
            RequestError: There are no credentials, the server redirects, or the connection broke, also in the body
                of the `async with`.
        """
        headers = await self.headers()
        try:
            response = await self._send(url, body, headers)
            if response.status == 401 and await self._renew(headers):
                response.release()
                headers = await self.headers()
                response = await self._send(url, body, headers)
            async with response:
                if response.status in REDIRECTS:
                    raise _redirected(url, response)
                try:
                    yield Response(response)
                except RequestError as error:
                    # A token that was fetched is in no environment.
                    error.message = redact(error.message, secrets_in(headers))
                    error.args = (error.message,)
                    error.request_id = request_id(response.headers)
                    raise
        except (aiohttp.ClientError, OSError) as error:
            is_unconnected = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
            proxy = "" if (used := proxy_of(url)) is None else f" (through the proxy {_host(used)}, see NO_PROXY)"
            message = f"{type(error).__name__}: {error}{proxy}"
            raise RequestError("connection", message, is_unconnected=is_unconnected) from None

    async def headers(self) -> Mapping[str, str]:
        """Returns the authentication headers of a request; a token is fetched in a thread, once for all requests.

        Raises:
            RequestError: The token service rejects the request, or cannot be reached.
        """
        with _token_errors():
            if not self._access.is_fresh:
                async with self._renewing:
                    if not self._access.is_fresh:
                        return await asyncio.to_thread(self._access.headers)
            return self._access.headers()

    async def _renew(self, rejected: Mapping[str, str]) -> bool:
        with _token_errors():
            async with self._renewing:
                return await asyncio.to_thread(self._access.renew, rejected)

    async def _send(
        self, url: str, body: Mapping[str, Any] | bytes, headers: Mapping[str, str]
    ) -> aiohttp.ClientResponse:
        if self._session is None:
            self._session = open_session(self._address, self._tls)
            self._session.headers.update(self._headers)
        content: dict[str, Any] = {"json": body}
        if isinstance(body, bytes):
            # aiohttp warns of more than 1 MB of bytes, which it writes at once; a file is written in chunks.
            content = {"data": body if len(body) < 2**20 else io.BytesIO(body)}
            headers = {**headers, "Content-Type": "application/json"}
        return await self._session.post(url, **content, headers=headers, allow_redirects=False)

    async def aclose(self) -> None:
        """Closes the session."""
        if self._session is not None:
            await self._session.close()


@contextlib.contextmanager
def _token_errors() -> Iterator[None]:
    try:
        yield
    except GoogleAuthError as error:
        if (redirect := redirect_behind(error)) is not None:
            raise RequestError(
                "unauthorized",
                f"no token: {redirect}. If that is the right server, make it `token_uri` of the credentials.",
            ) from None
        message = f"no token: {type(error).__name__}: {error}"
        if is_transient_token_error(error):
            raise RequestError("connection", message, is_unconnected=True) from None
        raise RequestError("unauthorized", message) from None


class HttpBackend:
    """Base class of backends with an HTTP session.

    Args:
        http: The session, which the backend owns.
    """

    def __init__(self, http: HttpClient) -> None:
        self._http = http

    async def aclose(self) -> None:
        """Closes the session."""
        await self._http.aclose()


def encoded(body: Mapping[str, Any]) -> bytes:
    """Encodes the body of a request with files, which `HttpClient` sends in chunks."""
    return json.dumps(body).encode()


def open_session(address: str, tls: ssl.SSLContext | None = None) -> aiohttp.ClientSession:
    """Opens a session without limits on connections or time, which the engine sets.

    The proxy variables of the environment are read once, here. `trust_env` of aiohttp reads netrc and proxies for
    each request, in a thread: a request through google-genai took 1.15 ms of CPU that way, and 0.78 ms this way.

    Args:
        address: Address of the server, which decides about the proxy.
        tls: How connections are encrypted; `None`: as usual.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=True if tls is None else tls),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
        proxy=proxy_of(address),
        # Without them each `Set-Cookie` of a server would be kept, and sent back with every request.
        cookie_jar=aiohttp.DummyCookieJar(),
        # See `Response`, which decompresses within limits.
        auto_decompress=False,
        headers={"Accept-Encoding": "gzip"},
    )


def proxy_of(address: str) -> str | None:
    """Returns the proxy that the environment names for an address; `None` for none.

    `NO_PROXY` is read as by curl, Go and requests: with networks, such as 10.0.0.0/8, too.
    """
    proxy = urllib.request.getproxies().get(urlsplit(address).scheme)
    return None if proxy is None or should_bypass_proxies(address, no_proxy=None) else proxy


def _host(address: str) -> str:
    """Returns the host of a proxy, whose address may have a password."""
    return urlsplit(address).hostname or "of the environment"


def _redirected(url: str, response: aiohttp.ClientResponse) -> RequestError:
    """Returns the error of a redirect; as `not_found` it ends a job whose every request would meet it."""
    refusal = redirect_refusal(url, response.headers.get("Location"), response.status)
    return RequestError(
        "not_found",
        f"{refusal}. Nothing was sent there. If that is the right server, set `model.base_url` to its address.",
        http_status=response.status,
    )


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


ChunkT = TypeVar("ChunkT")

#: Maximum length of a streamed answer: see `ANSWER_BYTES`, which limits the others.
MAX_CHARACTERS = 8 * 2**20


class StreamedText:
    """The text of a streamed answer so far.

    Args:
        on_piece: Takes each piece as it comes.
    """

    def __init__(self, on_piece: Callable[[str], None] | None = None) -> None:
        self._on_piece = on_piece
        self._pieces: list[str] = []
        self._characters = 0

    def __bool__(self) -> bool:
        return self._characters > 0

    def add(self, piece: str) -> None:
        """Appends a piece.

        Raises:
            RequestError: The text is too long.
        """
        if not piece:
            return
        self._pieces.append(piece)
        self._characters += len(piece)
        if self._on_piece is not None:
            self._on_piece(piece)
        if self._characters > MAX_CHARACTERS:
            raise RequestError(
                "garbage", f"a streamed answer of more than {MAX_CHARACTERS:,} characters", http_status=200
            )

    def whole(self) -> str:
        """Returns the text."""
        return "".join(self._pieces)


async def with_idle_timeout(chunks: AsyncIterator[ChunkT], idle_seconds: float) -> AsyncIterator[ChunkT]:
    """Yields chunks as they arrive.

    Raises:
        RequestError: No chunk arrived for `idle_seconds`.
    """
    while True:
        try:
            async with asyncio.timeout(idle_seconds):
                chunk = await anext(chunks)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise RequestError(
                "timeout", f"the answer stalled for {idle_seconds:g} s (`stream_idle_timeout_seconds`)"
            ) from None
        yield chunk


def incomplete_stream() -> RequestError:
    """Returns the error of a stream that ended before the answer was complete; its text is discarded."""
    return RequestError("connection", "the stream broke off before the answer was complete")
