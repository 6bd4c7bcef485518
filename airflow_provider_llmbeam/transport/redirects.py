"""Sessions of `requests`, and clients of Google, that follow no redirect."""

from __future__ import annotations

from typing import Any, TypeVar

import requests
from requests.adapters import HTTPAdapter

from airflow_provider_llmbeam.transport.server_reply import redirect_refusal

SessionT = TypeVar("SessionT", bound=requests.Session)
ClientT = TypeVar("ClientT")


class RedirectRefusedError(requests.RequestException):
    """A server redirects a request that carries a credential."""


class DirectAdapter(HTTPAdapter):
    """Refuses redirects, before their body is read.

    `allow_redirects=False` is not enough: `requests` then reads the whole body of the redirect (2.34). A session
    follows a redirect of a POST with its body (307, 308): a token request would send its assertion or its refresh
    token, and a session removes no other header than `Authorization`.
    """

    def build_response(self, req: requests.PreparedRequest, resp: Any) -> requests.Response:
        """Returns the response.

        Raises:
            RedirectRefusedError: It is a redirect.
        """
        response = super().build_response(req, resp)
        if response.is_redirect:
            response.close()
            refusal = redirect_refusal(str(req.url), response.headers["Location"], response.status_code)
            raise RedirectRefusedError(refusal, request=req, response=response)
        return response


def without_redirects(session: SessionT) -> SessionT:
    """Lets a session refuse redirects.

    Returns:
        The session.
    """
    session.mount("https://", DirectAdapter())
    session.mount("http://", DirectAdapter())
    return session


def direct(client: ClientT) -> ClientT:
    """Lets a client of one of Google's libraries, which follow redirects with their token, refuse them.

    Args:
        client: A client of `google-cloud-storage` or `google-cloud-bigquery`, or one with a REST transport.

    Returns:
        The client.
    """
    transport = getattr(client, "transport", None)
    without_redirects(client._http if transport is None else transport._session)  # type: ignore[attr-defined]
    return client


def redirect_behind(error: BaseException) -> RedirectRefusedError | None:
    """Returns the refused redirect that an error is, or that google-auth wrapped in it."""
    for each in (error, error.__cause__):
        if isinstance(each, RedirectRefusedError):
            return each
    return None
