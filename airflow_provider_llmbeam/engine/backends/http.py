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
    """

    def __init__(self, address: str, access: Access) -> None:
        self._address = address
        self._access = access
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def post(self, url: str, body: Mapping[str, Any] | bytes) -> AsyncIterator[aiohttp.ClientResponse]:
        """Sends one request; after a 401 once more with a renewed token, if there is one.

        Args:
            url: Address of the method.
            body: Value that is encoded as JSON, or encoded JSON.

        Raises:
            RequestError: There are no credentials, or the connection broke, also in the body of the `async with`.
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
        # aiohttp warns of more than 1 MB of bytes, which it writes at once; a file is written in chunks.
        data = body if len(body) < 2**20 else io.BytesIO(body)
        return await self._session.post(url, data=data, headers={**headers, "Content-Type": "application/json"})

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


def json_object(content: bytes, description: str) -> dict[str, Any]:
    """Parses the body of a successful response.

    Args:
        content: The body.
        description: Description of any other body, for the error after "a 200 that is".

    Raises:
        RequestError: The body is not a JSON object.
    """
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise invalid_response(content, description)
    return body


def invalid_response(content: bytes, description: str) -> RequestError:
    """Returns the error of a successful response without an answer, which quotes its body."""
    body = content[:500].decode("utf-8", "replace")
    return RequestError("garbage", f"a 200 that is {description}: {body}", http_status=200)


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
        timeout=aiohttp.ClientTimeout(total=None),
        proxy=None if bypassed else urllib.request.getproxies().get(server.scheme),
        read_bufsize=2**20,  # maximum length of a line of a streamed answer
    )


def seconds_of(retry_after: str | None) -> float | None:
    """Parses a `Retry-After` header in seconds; `None` for a date."""
    try:
        return max(0.0, float(retry_after)) if retry_after else None
    except ValueError:
        return None
