"""Google Cloud's JSON APIs that have no client over HTTP among our dependencies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_llmbeam.google_cloud.base import REQUEST_SECONDS, GoogleHook, retry
from airflow_provider_llmbeam.google_cloud.errors import CloudRequest, translated, usable_connection
from airflow_provider_llmbeam.google_cloud.sessions import with_shared_connections
from airflow_provider_llmbeam.google_cloud.tokens import token_request

#: Of all tries of one request: a sensor looks again soon.
TRY_SECONDS = 15.0


class GoogleRest:
    """Asks for JSON with the credentials of a connection.

    google-cloud-monitoring speaks gRPC alone, which `RegionalHook` avoids; google-api-python-client goes through
    httplib2, which overlooks a proxy unless PySocks is there.

    Args:
        hook: Whose credentials ask.
    """

    def __init__(self, hook: GoogleHook) -> None:
        self._hook = hook
        self._session: Any = None

    def get(self, url: str, params: Mapping[str, Any], request: CloudRequest) -> dict[str, Any]:
        """Sends one GET, and again while that may help.

        Args:
            url: Without a query.
            params: Of the query; lists repeat a name.
            request: For error messages.

        Raises:
            CloudError: See `google_errors`.
        """
        from google.api_core.exceptions import from_http_response

        def ask() -> dict[str, Any]:
            reply = self._authorized().get(url, params=params, timeout=REQUEST_SECONDS)
            if reply.status_code != 200:
                raise from_http_response(reply)  # type: ignore[no-untyped-call]
            found: dict[str, Any] = reply.json()
            return found

        with translated(request):
            result: dict[str, Any] = retry(TRY_SECONDS)(ask)()
            return result

    def _authorized(self) -> Any:
        if self._session is None:
            from google.auth.transport.requests import AuthorizedSession

            with usable_connection(self._hook.gcp_conn_id):
                credentials = self._hook.get_credentials()
            made = AuthorizedSession(credentials, auth_request=token_request())  # type: ignore[no-untyped-call]
            self._session = with_shared_connections(made)
        return self._session
