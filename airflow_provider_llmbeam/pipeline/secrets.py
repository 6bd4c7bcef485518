"""Keys for the workers: variables of their environment, each from a secret of Secret Manager."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Mapping

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError, LLMBeamError

_log = logging.getLogger(__name__)

#: With its retries: one worker's start, not its work, waits for it.
TIMEOUT_SECONDS = 60.0

_LOCK = threading.Lock()
_KEPT = "What was answered so far is in the journal: another try sends only the rest."


def load_environment(secrets: Mapping[str, str]) -> None:
    """Sets variables of this process's environment, each from a version of a secret.

    A variable that is set and not empty stays, so each secret is fetched once per process, and an image or a test
    can hold one of its own. The account is the worker's own. Line breaks at the end, as `echo` leaves them, go.

    Args:
        secrets: Name of a variable to `projects/…/secrets/…/versions/…`.

    Raises:
        JobSpecError: A secret is not there, may not be read, or is no text.
        JobFailedError: Secret Manager does not answer; it may do so later.
    """
    with _LOCK:
        missing = {name: secret for name, secret in secrets.items() if not os.environ.get(name)}
        if missing:
            _load(missing)


def _load(secrets: Mapping[str, str]) -> None:
    # Jobs without secrets have no use for the client.
    from google.api_core.exceptions import GoogleAPIError
    from google.api_core.retry import Retry
    from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
    from google.cloud import secretmanager
    from requests.exceptions import RequestException

    name = secret = ""
    try:
        # REST, because it goes through a proxy, and needs no second stack of TLS in the worker.
        with secretmanager.SecretManagerServiceClient(transport="rest") as client:
            # With REST a 429 is of no class that the client's own retry looks for.
            retry = Retry(initial=0.5, maximum=10.0, timeout=TIMEOUT_SECONDS)
            for name, secret in secrets.items():
                version = client.access_secret_version(name=secret, retry=retry, timeout=TIMEOUT_SECONDS)
                os.environ[name] = _text(name, secret, version.payload.data)
    except DefaultCredentialsError as error:
        raise JobSpecError(
            f"`runner.environment_secrets`: the worker has no Google credentials to read secrets with: {error} "
            f"Expected those of its service account, `runner.service_account`. {_KEPT}"
        ) from None
    except GoogleAPIError as error:
        raise _in_words(name, secret, error) from None
    except (GoogleAuthError, RequestException) as error:
        raise _later(name, secret, error) from None
    _log.info("From Secret Manager: %s", ", ".join(secrets))


def _text(name: str, secret: str, data: bytes) -> str:
    try:
        text = data.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        text = ""
    # Never quoted, not even in part.
    if not text or "\0" in text:
        raise JobSpecError(
            f"`runner.environment_secrets`: what {secret!r} holds cannot be the value of an environment variable, "
            f"{name!r}: it is empty or no UTF-8 text. {_KEPT}"
        )
    return text


def _in_words(name: str, secret: str, error: Exception) -> LLMBeamError:
    from google.api_core.exceptions import BadRequest, Forbidden, GoogleAPICallError, NotFound, Unauthorized

    # Before the service's own words stand the verb and the address.
    words = re.sub(r"^[A-Z]+ https?://\S+: ", "", error.message if isinstance(error, GoogleAPICallError) else "")
    fault = f"`runner.environment_secrets`: {secret!r}, for {name!r},"
    match error:
        case NotFound():
            return JobSpecError(f"{fault} is not there: {words} Create it, or name another version. {_KEPT}")
        case Forbidden() | Unauthorized():
            return JobSpecError(
                f"{fault} may not be read: {words} The service account of the workers, `runner.service_account`, "
                f"needs the role roles/secretmanager.secretAccessor on it. {_KEPT}"
            )
        case BadRequest():  # among them FAILED_PRECONDITION: disabled or destroyed
            return JobSpecError(f"{fault} cannot be read: {words} Enable it, or name another version. {_KEPT}")
        case _:
            return _later(name, secret, error)


def _later(name: str, secret: str, error: Exception) -> JobFailedError:
    return JobFailedError(
        f"`runner.environment_secrets`: {secret!r}, for {name!r}, could not be read within {TIMEOUT_SECONDS:g} s: "
        f"{type(error).__name__}: {error} {_KEPT}"
    )
