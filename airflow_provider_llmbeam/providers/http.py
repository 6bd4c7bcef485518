"""The HTTP session that backends share, with its errors as `RequestError`."""

from __future__ import annotations

import io
import json
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol
from urllib.parse import urlsplit

import aiohttp

from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.providers.response import Response
from airflow_provider_llmbeam.transport.server_reply import REDIRECTS, redirect_refusal

#: Timeout of a new connection: a firewall that drops packets makes an address that cannot be reached, not a slow
#: answer.
CONNECT_SECONDS = 10.0


class Access(Protocol):
    """Authentication headers of model requests."""

    async def headers(self) -> Mapping[str, str]:
        """Returns the headers of a request.

        Raises:
            RequestError: No headers can be obtained now.
        """
        ...

    async def renewed(self, rejected: Mapping[str, str]) -> bool:
        """Returns, after a 401, whether there are other headers than the rejected ones."""
        ...


class FixedAccess:
    """Fixed headers: a key, or none."""

    def __init__(self, headers: Mapping[str, str] | None = None) -> None:
        self._headers = dict(headers or {})

    async def headers(self) -> Mapping[str, str]:
        """Returns the headers of a request."""
        return self._headers

    async def renewed(self, rejected: Mapping[str, str]) -> bool:
        """Returns `False`: the headers are fixed."""
        return False


class HttpClient:
    """An aiohttp session, opened on first use by the event loop that uses it.

    Args:
        address: Address of the server.
        access: Authentication headers.
        headers: Other headers of each request.
    """

    def __init__(self, address: str, access: Access, headers: Mapping[str, str] | None = None) -> None:
        self._address = address
        self._access = access
        self._headers = headers or {}
        self._session: aiohttp.ClientSession | None = None

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
        headers = await self._access.headers()
        try:
            response = await self._send(url, body, headers)
            if response.status == 401 and await self._access.renewed(headers):
                response.release()
                response = await self._send(url, body, await self._access.headers())
            async with response:
                if response.status in REDIRECTS:
                    raise _redirected(url, response)
                yield Response(response)
        except (aiohttp.ClientError, OSError) as error:
            is_unconnected = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
            message = f"{type(error).__name__}: {error}"
            raise RequestError("connection", message, is_unconnected=is_unconnected) from None

    async def _send(
        self, url: str, body: Mapping[str, Any] | bytes, headers: Mapping[str, str]
    ) -> aiohttp.ClientResponse:
        if self._session is None:
            self._session = open_session(self._address)
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


def open_session(address: str) -> aiohttp.ClientSession:
    """Opens a session without limits on connections or time, which the engine sets.

    The proxy variables of the environment are read once, here. `trust_env` of aiohttp reads netrc and proxies for
    each request, in a thread: a request through google-genai took 1.15 ms of CPU that way, and 0.78 ms this way.

    Args:
        address: Address of the server, which decides about the proxy.
    """
    server = urlsplit(address)
    bypassed = bool(urllib.request.proxy_bypass(server.hostname or ""))
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
        proxy=None if bypassed else urllib.request.getproxies().get(server.scheme),
        # Without them each `Set-Cookie` of a server would be kept, and sent back with every request.
        cookie_jar=aiohttp.DummyCookieJar(),
        # See `Response`, which decompresses within limits.
        auto_decompress=False,
        headers={"Accept-Encoding": "gzip"},
    )


def _redirected(url: str, response: aiohttp.ClientResponse) -> RequestError:
    """Returns the error of a redirect; as `not_found` it ends a job whose every request would meet it."""
    refusal = redirect_refusal(url, response.headers.get("Location"), response.status)
    return RequestError(
        "not_found",
        f"{refusal}. Nothing was sent there. If that is the right server, set `model.base_url` to its address.",
        http_status=response.status,
    )
