"""Translates errors of the Google Cloud clients to ours: the fault, and what to do about it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import requests
from airflow.providers.common.compat.sdk import AirflowException
from google.api_core import exceptions as api
from google.auth import exceptions as auth
from google.protobuf.json_format import ParseError

from airflow_provider_llmbeam.exceptions import (
    AccessDeniedError,
    CloudError,
    CloudNotFoundError,
    CloudUnavailableError,
    JobSpecError,
    RequestRefusedError,
)
from airflow_provider_llmbeam.redaction import redact
from airflow_provider_llmbeam.transport.google_auth import is_transient_token_error
from airflow_provider_llmbeam.transport.redirects import redirect_behind

_AGAIN = (api.ServerError, api.TooManyRequests, api.RetryError, requests.RequestException)

#: Prefix that google-api-core adds to the message of the service.
_REQUEST_PREFIX = re.compile(r"^(GET|POST|PUT|PATCH|DELETE) \S+: ")


def is_transient(error: BaseException) -> bool:
    """Whether a retry of the same request may succeed."""
    if redirect_behind(error) is not None:
        return False
    if isinstance(error, auth.GoogleAuthError):
        return is_transient_token_error(error)
    if isinstance(error, api.MethodNotImplemented):
        return False
    # A body with status 200 that is not JSON comes from a proxy, not from the service.
    return isinstance(error, (*_AGAIN, ParseError)) or getattr(error, "code", None) in (408, 429)


@dataclass(frozen=True, slots=True)
class CloudRequest:
    """Description of a request, for error messages.

    Attributes:
        action: Continuation of "Google Cloud did not", e.g. "list the jobs of 'europe-west1'".
        project: Project that is billed.
        service: API of the service.
        role: Role that allows the request.
        missing: Resource that does not exist if the reply is a 404.
    """

    action: str
    project: str
    service: str
    role: str
    missing: str = "what was asked for"


@contextmanager
def translate_errors(request: CloudRequest) -> Iterator[None]:
    """Turns errors of Google's clients into a `CloudError`."""
    try:
        yield
    except (api.GoogleAPIError, auth.GoogleAuthError, requests.RequestException, ParseError) as error:
        raise cloud_error(error, request) from error


@contextmanager
def before_submission() -> Iterator[None]:
    """Turns errors that a retry would repeat into a `JobSpecError`: there is no job yet."""
    try:
        yield
    except CloudError as error:
        if error.retryable:
            raise
        raise JobSpecError(str(error)) from error


@contextmanager
def usable_connection(gcp_conn_id: str) -> Iterator[None]:
    """Turns errors of reading a connection's credentials into a `CloudError`."""
    try:
        yield
    except auth.GoogleAuthError as error:
        if is_transient(error):
            raise CloudUnavailableError(f"Google Cloud gave no credentials: {_message(error)}") from error
        raise AccessDeniedError(_no_credentials(error, gcp_conn_id)) from error
    except (AirflowException, OSError, ValueError) as error:
        # The hook of apache-airflow-providers-google raises all three for a key that cannot be read.
        raise AccessDeniedError(_no_credentials(error, gcp_conn_id)) from error


def require_new(token: str, earlier: set[str], action: str) -> None:
    """Adds the token of the next page of a list to those of the pages before it.

    Raises:
        CloudUnavailableError: It is one of them, so the list would have no end.
    """
    if token in earlier:
        raise CloudUnavailableError(
            f"Google Cloud did not {action}: page {len(earlier) + 1} of the list names a page that was read "
            f"before as the next one, {token[:100]!r}, so the rest of the list is unknown. Reading it "
            "changed nothing; a retry reads it again."
        )
    earlier.add(token)


def cloud_error(error: Exception, request: CloudRequest) -> CloudError:
    """Returns the `CloudError` for an error of a Google Cloud client."""
    if isinstance(error, api.RetryError) and isinstance(error.cause, Exception):
        return cloud_error(error.cause, request)
    refused = f"Google Cloud did not {request.action}{_status(error)}: {_message(error)}"
    if is_transient(error):
        return CloudUnavailableError(refused)
    if redirect_behind(error) is not None:
        return RequestRefusedError(f"{refused} Check the proxy of the worker and `token_uri` of the credentials.")
    if isinstance(error, auth.GoogleAuthError):
        return AccessDeniedError(
            f"{refused} The credentials of the worker are missing or refused: give the Airflow connection a key, "
            "or run `gcloud auth application-default login`."
        )
    if isinstance(error, api.Unauthorized):
        return AccessDeniedError(f"{refused} The credentials were refused: they are expired or of another cloud.")
    if isinstance(error, api.Forbidden):
        return AccessDeniedError(f"{refused} {_remedy(error, request)}")
    if isinstance(error, api.NotFound):
        return CloudNotFoundError(f"{refused} There is no {request.missing}, or the account may not see it.")
    return RequestRefusedError(refused)


def _remedy(error: api.Forbidden, request: CloudRequest) -> str:
    if error.reason == "SERVICE_DISABLED" or "has not been used in project" in str(error):
        return (
            f"The API is not enabled. Enable it: `gcloud services enable {request.service} "
            f"--project={request.project}`."
        )
    if error.reason == "BILLING_DISABLED" or "billing" in str(error).lower():
        return f"Project {request.project!r} seems to have no billing account."
    return f"The account needs the role `{request.role}` in project {request.project!r}, or one that holds it."


def _status(error: Exception) -> str:
    code = getattr(error, "code", None)
    return f" (HTTP {int(code)})" if isinstance(error, api.GoogleAPICallError) and code else ""


def _no_credentials(error: Exception, gcp_conn_id: str) -> str:
    return (
        f"Connection {gcp_conn_id!r} (`gcp_conn_id`) gives no credentials for Google Cloud: {_message(error)} "
        "Expected a key or an account in the connection, or Application Default Credentials on this machine "
        "(`gcloud auth application-default login`)."
    )


def _message(error: Exception) -> str:
    """Returns the message of the service, in one line that ends as a sentence, without e.g. a proxy's password."""
    # Errors of google-auth have further arguments: the reply, and whether to retry.
    first = error.args[0] if isinstance(error, auth.GoogleAuthError) and error.args else error
    message = getattr(error, "message", None) or str(first) or type(error).__name__
    line = redact(" ".join(_inner_message(_REQUEST_PREFIX.sub("", str(message))).split()))[:600]
    return line if line.endswith((".", "!", "?")) else f"{line}."


def _inner_message(message: str) -> str:
    """Returns the message within a JSON body, which the client of Cloud Storage quotes whole for uploads."""
    try:
        body, _ = json.JSONDecoder().raw_decode(message)
        return str(body["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return message
