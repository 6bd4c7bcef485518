"""Sessions with credentials: those of this process, or those that a caller brings."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import google.auth
import requests
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import AuthorizedSession, Request

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.model import GeminiModel, OpenAIModel, key_variables
from airflow_provider_llmbeam.transport.redirects import without_redirects

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def open_session(model: GeminiModel | OpenAIModel) -> requests.Session:
    """Returns a session that sends the credentials for a model and refuses redirects.

    Raises:
        JobSpecError: There are none.
    """
    if isinstance(model, GeminiModel) and model.project:
        return _authorized_session()
    names = key_variables(model)
    key = next(filter(None, map(os.environ.get, names)), None)
    if key is None:
        raise JobSpecError(
            f"Batch inference of model {model.name!r} needs a key in the environment variable "
            f"{' or '.join(f'`{name}`' for name in names)}, e.g. from an `llmbeam` connection; found none. "
            "Nothing was sent or billed."
        )
    return key_session(
        {"x-goog-api-key": key} if isinstance(model, GeminiModel) else {"Authorization": f"Bearer {key}"}
    )


def key_session(header: Mapping[str, str]) -> requests.Session:
    """Returns a session that sends a header with a key, and refuses redirects."""
    return session_with(lambda: header)


def session_with(headers: Callable[[], Mapping[str, str]]) -> requests.Session:
    """Returns a session that sends the headers that a function returns for each request, and refuses redirects."""
    session = without_redirects(requests.Session())

    def authorize(request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers.update(headers())
        return request

    session.auth = authorize  # without it, `requests` takes the credentials of ~/.netrc
    return session


def _authorized_session() -> requests.Session:
    try:
        credentials = google.auth.default(scopes=[_SCOPE])[0]
    except GoogleAuthError as error:
        raise JobSpecError(
            f"Vertex AI (`model.project`) needs Google credentials: {error} Nothing was sent or billed."
        ) from error
    tokens = Request(without_redirects(requests.Session()))
    return without_redirects(AuthorizedSession(credentials, auth_request=tokens))  # type: ignore[no-untyped-call]
