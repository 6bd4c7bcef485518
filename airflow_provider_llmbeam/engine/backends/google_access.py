"""What lets a request in at Google: a key, or a token that is renewed in time."""

from __future__ import annotations

import asyncio

import google.auth
from google.auth.credentials import Credentials, TokenState
from google.auth.exceptions import GoogleAuthError, TransportError
from google.auth.transport.requests import Request

from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.exceptions import JobSpecError

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


class ApiKey:
    """A key of the Gemini Developer API."""

    def __init__(self, key: str) -> None:
        self._headers = {"x-goog-api-key": key}

    async def headers(self) -> dict[str, str]:
        """Returns the headers of a request."""
        return self._headers


class BearerToken:
    """Application Default Credentials; a token is renewed some minutes before its end, by one request for all.

    Raises:
        JobSpecError: There are none.
    """

    def __init__(self) -> None:
        try:
            self._credentials: Credentials = google.auth.default(scopes=[_SCOPE])[0]
        except GoogleAuthError as error:
            raise JobSpecError(
                f"Vertex AI (`model.project`) needs Google credentials: {error} Nothing was sent or billed."
            ) from error
        self._renewing = asyncio.Lock()

    async def headers(self) -> dict[str, str]:
        """Returns the headers of a request.

        Raises:
            RequestError: The token service refuses, or cannot be reached.
        """
        if self._credentials.token_state is not TokenState.FRESH:
            async with self._renewing:
                if self._credentials.token_state is not TokenState.FRESH:
                    await self._renew()
        headers: dict[str, str] = {}
        self._credentials.apply(headers)  # type: ignore[no-untyped-call]
        return headers

    async def _renew(self) -> None:
        try:
            await asyncio.to_thread(self._credentials.refresh, Request())
        except TransportError as error:
            raise RequestError("connection", f"{type(error).__name__}: {error}") from None
        except GoogleAuthError as error:
            raise RequestError("unauthorized", f"{type(error).__name__}: {error}") from None
