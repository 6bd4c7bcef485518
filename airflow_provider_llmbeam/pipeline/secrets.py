"""Environment variables of the workers, each from a secret of Secret Manager."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterable, Mapping

from airflow_provider_llmbeam.exceptions import JobFailedError, JobRefusedError, LLMBeamError
from airflow_provider_llmbeam.redaction import secrets_of
from airflow_provider_llmbeam.transport.redirects import direct

_log = logging.getLogger(__name__)

#: Timeout with all retries; it delays only the start of a worker.
TIMEOUT_SECONDS = 60.0

_LOCK = threading.Lock()
_KEPT = "The answers so far are in the journal: another run sends only the rest."


def load_environment(secrets: Mapping[str, str]) -> None:
    """Sets variables of this process's environment, each from a version of a secret.

    A variable that is set and not empty is kept, so that each secret is fetched once per process, and an image or
    a test can set its own value. The account is that of the worker. Trailing line breaks are removed.

    Args:
        secrets: Version of a secret by variable, `projects/…/secrets/…/versions/…`.

    Raises:
        JobRefusedError: A secret does not exist, cannot be read, or is not text.
        JobFailedError: Secret Manager does not answer; a retry may succeed.
    """
    with _LOCK:
        missing = {name: secret for name, secret in secrets.items() if not os.environ.get(name)}
        if missing:
            _load(missing)


def known_secrets(names: Iterable[str] = ()) -> tuple[str, ...]:
    """Returns the secrets in the environment of this process, at present, for `redact`.

    Args:
        names: Variables that hold secrets, besides those whose names say so.
    """
    return secrets_of(os.environ, names)


def _load(secrets: Mapping[str, str]) -> None:
    # Imported here, as jobs without secrets do not need the client.
    from google.api_core.exceptions import GoogleAPIError
    from google.api_core.retry import Retry
    from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
    from google.cloud import secretmanager
    from requests.exceptions import RequestException

    name = secret = ""
    try:
        # REST works through a proxy, and needs no second TLS library in the worker.
        with direct(secretmanager.SecretManagerServiceClient(transport="rest")) as client:
            # With REST the default retry of the client does not cover a 429.
            retry = Retry(initial=0.5, maximum=10.0, timeout=TIMEOUT_SECONDS)
            for name, secret in secrets.items():
                version = client.access_secret_version(name=secret, retry=retry, timeout=TIMEOUT_SECONDS)
                os.environ[name] = _text(name, secret, version.payload.data)
    except DefaultCredentialsError as error:
        raise JobRefusedError(
            f"`runner.environment_secrets`: the worker has no Google credentials to read secrets with: {error} "
            f"Expected those of its service account, `runner.service_account`. {_KEPT}"
        ) from None
    except GoogleAPIError as error:
        raise _error_of(name, secret, error) from None
    except (GoogleAuthError, RequestException) as error:
        raise _temporary(name, secret, error) from None
    _log.info("Read from Secret Manager: %s", ", ".join(secrets))


def _text(name: str, secret: str, data: bytes) -> str:
    try:
        text = data.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        text = ""
    # The value is never quoted, not even in part.
    if not text or "\0" in text:
        raise JobRefusedError(
            f"`runner.environment_secrets`: the value of {secret!r} cannot be set as variable {name!r}: "
            f"it is empty or not UTF-8 text. {_KEPT}"
        )
    return text


def _error_of(name: str, secret: str, error: Exception) -> LLMBeamError:
    from google.api_core.exceptions import BadRequest, Forbidden, GoogleAPICallError, NotFound, Unauthorized

    # The message of the service follows the verb and the address.
    message = re.sub(r"^[A-Z]+ https?://\S+: ", "", error.message if isinstance(error, GoogleAPICallError) else "")
    fault = f"`runner.environment_secrets`: {secret!r}, for {name!r},"
    match error:
        case NotFound():
            return JobRefusedError(
                f"{fault} does not exist: {message} Create it, or name another version. {_KEPT}"
            )
        case Forbidden() | Unauthorized():
            return JobRefusedError(
                f"{fault} may not be read: {message} The service account of the workers (`runner.service_account`)"
                f" needs the role roles/secretmanager.secretAccessor on it. {_KEPT}"
            )
        case BadRequest():  # among them FAILED_PRECONDITION: disabled or destroyed
            return JobRefusedError(
                f"{fault} cannot be read: {message} Enable it, or name another version. {_KEPT}"
            )
        case _:
            return _temporary(name, secret, error)


def _temporary(name: str, secret: str, error: Exception) -> JobFailedError:
    return JobFailedError(
        f"`runner.environment_secrets`: {secret!r}, for {name!r}, could not be read within {TIMEOUT_SECONDS:g} s: "
        f"{type(error).__name__}: {error} {_KEPT}"
    )
