"""What the clients of Google Cloud raise, as errors of ours: the fault, and what to do about it."""

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

_AGAIN = (api.ServerError, api.TooManyRequests, api.RetryError, requests.RequestException, auth.TransportError)

#: What google-api-core puts before the words of the service.
_ASKED = re.compile(r"^(GET|POST|PUT|PATCH|DELETE) \S+: ")


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed a little later."""
    if isinstance(error, auth.GoogleAuthError):
        return isinstance(error, auth.TransportError) or bool(getattr(error, "retryable", False))
    if isinstance(error, api.MethodNotImplemented):
        return False
    # A body that is not JSON with status 200 is a proxy's, not the service's.
    return isinstance(error, (*_AGAIN, ParseError)) or getattr(error, "code", None) in (408, 429)


@dataclass(frozen=True, slots=True)
class CloudRequest:
    """What was asked for, in the words of an error message.

    Attributes:
        action: Goes on from "Google Cloud did not", e.g. "list the jobs of 'europe-west1'".
        project: That is billed.
        service: Its API.
        role: That allows the request.
        missing: What there is none of, where the answer is 404.
    """

    action: str
    project: str
    service: str = "dataflow.googleapis.com"
    role: str = "roles/dataflow.developer"
    missing: str = "what was asked for"


@contextmanager
def translated(request: CloudRequest) -> Iterator[None]:
    """Turns what the body raises into a `CloudError`."""
    try:
        yield
    except (api.GoogleAPIError, auth.GoogleAuthError, requests.RequestException, ParseError) as error:
        raise cloud_error(error, request) from error


@contextmanager
def before_submission() -> Iterator[None]:
    """Turns what a retry repeats into a `JobSpecError`: there is no job yet."""
    try:
        yield
    except CloudError as error:
        if error.retryable:
            raise
        raise JobSpecError(f"{error} Nothing was sent or billed.") from error


@contextmanager
def usable_connection(gcp_conn_id: str) -> Iterator[None]:
    """Turns what reading the credentials of a connection raises into a `CloudError`."""
    try:
        yield
    except auth.GoogleAuthError as error:
        if is_transient(error):
            raise CloudUnavailableError(f"Google Cloud gave no credentials: {_words(error)}") from error
        raise AccessDeniedError(_no_credentials(error, gcp_conn_id)) from error
    except (AirflowException, OSError, ValueError) as error:
        # The hook of apache-airflow-providers-google raises all three for a key that cannot be read.
        raise AccessDeniedError(_no_credentials(error, gcp_conn_id)) from error


def cloud_error(error: Exception, request: CloudRequest) -> CloudError:
    """Says in one of our errors what a client of Google Cloud raised."""
    if isinstance(error, api.RetryError) and isinstance(error.cause, Exception):
        return cloud_error(error.cause, request)
    refused = f"Google Cloud did not {request.action}{_status(error)}: {_words(error)}"
    if is_transient(error):
        return CloudUnavailableError(refused)
    if isinstance(error, auth.GoogleAuthError):
        return AccessDeniedError(
            f"{refused} The credentials of the worker are missing or refused: give the Airflow connection a key, "
            "or run `gcloud auth application-default login`."
        )
    if isinstance(error, api.Unauthorized):
        return AccessDeniedError(f"{refused} The credentials were refused: they are expired or of another cloud.")
    if isinstance(error, api.Forbidden):
        return AccessDeniedError(f"{refused} {_what_allows_it(error, request)}")
    if isinstance(error, api.NotFound):
        return CloudNotFoundError(f"{refused} There is no {request.missing}, or the account may not see it.")
    return RequestRefusedError(refused)


def _what_allows_it(error: api.Forbidden, request: CloudRequest) -> str:
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
        f"Connection {gcp_conn_id!r} (`gcp_conn_id`) gives no credentials for Google Cloud: {_words(error)} "
        "Expected a key or an account in the connection, or Application Default Credentials on this machine "
        "(`gcloud auth application-default login`)."
    )


def _words(error: Exception) -> str:
    """The service's own words, in one line that ends as a sentence."""
    # Those of google-auth carry more than words: the reply, whether to try again.
    first = error.args[0] if isinstance(error, auth.GoogleAuthError) and error.args else error
    message = getattr(error, "message", None) or str(first) or type(error).__name__
    words = " ".join(_said(_ASKED.sub("", str(message))).split())[:600]
    return words if words.endswith((".", "!", "?")) else f"{words}."


def _said(message: str) -> str:
    """The words of a body that the client of Cloud Storage quotes whole, as it does for uploads."""
    try:
        body, _ = json.JSONDecoder().raw_decode(message)
        return str(body["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return message
