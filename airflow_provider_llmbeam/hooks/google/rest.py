"""JSON APIs of Google Cloud for which no HTTP client is among the dependencies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_llmbeam.hooks.google.authentication import token_request
from airflow_provider_llmbeam.hooks.google.base import REQUEST_SECONDS, GoogleHook, retry
from airflow_provider_llmbeam.hooks.google.errors import (
    CloudRequest,
    require_new,
    translate_errors,
    usable_connection,
)
from airflow_provider_llmbeam.hooks.google.sessions import with_shared_connections

#: Timeout of one request with all its retries, in seconds: a sensor polls again soon.
TRY_SECONDS = 15.0


class GoogleRest:
    """Exchanges JSON with the credentials of a connection.

    google-cloud-monitoring supports only gRPC, which `RegionalHook` avoids; google-api-python-client uses
    httplib2, which ignores a proxy unless PySocks is installed.

    Args:
        hook: Hook with the credentials.
    """

    def __init__(self, hook: GoogleHook) -> None:
        self._hook = hook
        self._session: Any = None

    def get(self, url: str, params: Mapping[str, Any], request: CloudRequest) -> dict[str, Any]:
        """Sends a GET request, and retries transient errors.

        Args:
            url: URL without a query.
            params: Parameters of the query; a list repeats its name.
            request: Description for error messages.

        Raises:
            CloudError: See `hooks.google.errors`.
        """
        return self._exchange(request, "GET", url, params=params)

    def post(self, url: str, body: Mapping[str, Any], request: CloudRequest) -> dict[str, Any]:
        """Sends a POST request of a method that changes nothing, and retries transient errors.

        Args:
            url: URL.
            body: Body.
            request: Description for error messages.

        Raises:
            CloudError: See `hooks.google.errors`.
        """
        return self._exchange(request, "POST", url, json=body)

    def _exchange(self, request: CloudRequest, verb: str, url: str, **arguments: Any) -> dict[str, Any]:
        from google.api_core.exceptions import from_http_response

        def send() -> dict[str, Any]:
            reply = self._open_session().request(verb, url, timeout=REQUEST_SECONDS, **arguments)
            if reply.status_code != 200:
                raise from_http_response(reply)  # type: ignore[no-untyped-call]
            found: dict[str, Any] = reply.json()
            return found

        with translate_errors(request):
            result: dict[str, Any] = retry(TRY_SECONDS)(send)()
            return result

    def pages(self, url: str, params: Mapping[str, Any], request: CloudRequest) -> Iterator[dict[str, Any]]:
        """Reads all pages of a list; the arguments and errors are those of `get`.

        Raises:
            CloudUnavailableError: A page names one before it as the next one.
        """
        query, tokens = dict(params), set[str]()
        while True:
            reply = self.get(url, query, request)
            yield reply
            if not (token := reply.get("nextPageToken")):
                return
            require_new(token, tokens, request.action)
            query["pageToken"] = token

    def _open_session(self) -> Any:
        if self._session is None:
            from google.auth.transport.requests import AuthorizedSession

            with usable_connection(self._hook.gcp_conn_id):
                credentials = self._hook.get_credentials()
            made = AuthorizedSession(credentials, auth_request=token_request())  # type: ignore[no-untyped-call]
            self._session = with_shared_connections(made)
        return self._session
