"""HTTP, as backends have it in common: one session, and its troubles in our words."""

from __future__ import annotations

import io
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol
from urllib.parse import urlsplit

import aiohttp

from airflow_provider_llmbeam.engine.retry import RequestError


class Access(Protocol):
    """What lets a request in."""

    async def headers(self) -> Mapping[str, str]:
        """Returns the headers of a request.

        Raises:
            RequestError: There is no access now.
        """
        ...

    async def renewed(self, refused: Mapping[str, str]) -> bool:
        """Tells, after a 401, whether there are other headers than those that it refused."""
        ...


class FixedAccess:
    """A key, or none: the same headers all along."""

    def __init__(self, headers: Mapping[str, str] | None = None) -> None:
        self._headers = dict(headers or {})

    async def headers(self) -> Mapping[str, str]:
        """Returns the headers of a request."""
        return self._headers

    async def renewed(self, refused: Mapping[str, str]) -> bool:
        """There are no others."""
        return False


class HttpClient:
    """One aiohttp session, opened on first use: it belongs to the loop that runs it.

    Args:
        address: Of the server.
        access: What lets a request in.
    """

    def __init__(self, address: str, access: Access) -> None:
        self._address = address
        self._access = access
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def post(self, url: str, body: Mapping[str, Any] | bytes) -> AsyncIterator[aiohttp.ClientResponse]:
        """Sends one request; once more with another token, where a 401 says that the first one ended.

        Args:
            url: Of the method.
            body: What becomes JSON, or JSON.

        Raises:
            RequestError: There is no access, or the connection broke, here or in the body of the `async with`.
        """
        headers = await self._access.headers()
        try:
            response = await self._send(url, body, headers)
            if response.status == 401 and await self._access.renewed(headers):
                response.release()
                response = await self._send(url, body, await self._access.headers())
            async with response:
                yield response
        except (aiohttp.ClientError, OSError) as error:
            raise RequestError("connection", f"{type(error).__name__}: {error}") from None

    async def _send(
        self, url: str, body: Mapping[str, Any] | bytes, headers: Mapping[str, str]
    ) -> aiohttp.ClientResponse:
        if self._session is None:
            self._session = open_session(self._address)
        if not isinstance(body, bytes):
            return await self._session.post(url, json=body, headers=headers)
        # aiohttp writes more than 1 MB of bytes at once, and warns of it; a file it writes in pieces.
        data = body if len(body) < 2**20 else io.BytesIO(body)
        return await self._session.post(url, data=data, headers={**headers, "Content-Type": "application/json"})

    async def aclose(self) -> None:
        """Closes the session."""
        if self._session is not None:
            await self._session.close()


def open_session(address: str) -> aiohttp.ClientSession:
    """Opens a session without a limit on connections or time: the engine has both.

    The proxy variables of the environment are read once, here. aiohttp's own `trust_env` looks for a netrc file
    and for proxies at each request, in a thread: a request through google-genai then took 1.15 ms of CPU, and
    takes 0.78 ms so.

    Args:
        address: Of the server, to know whether a proxy leads there.
    """
    server = urlsplit(address)
    bypassed = bool(urllib.request.proxy_bypass(server.hostname or ""))
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
        proxy=None if bypassed else urllib.request.getproxies().get(server.scheme),
        read_bufsize=2**20,  # the longest line of a streamed answer
    )


def seconds_of(retry_after: str | None) -> float | None:
    """Reads a `Retry-After` header; a date is none."""
    try:
        return max(0.0, float(retry_after)) if retry_after else None
    except ValueError:
        return None
