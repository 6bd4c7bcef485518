"""Authentication of the requests to a model: the one place that looks up its key or its credentials."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.redaction import secrets_of
from airflow_provider_llmbeam.spec.model import Model, OpenAIModel
from airflow_provider_llmbeam.spec.model.model import value_of
from airflow_provider_llmbeam.transport.google_auth import GoogleToken, default_credentials, token_request

if TYPE_CHECKING:
    from google.auth.credentials import Credentials
    from google.auth.transport.requests import Request

#: Returns credentials; its arguments are those of `default_credentials`.
FindCredentials = Callable[[str, str | None], "Credentials"]


class Access(Protocol):
    """Authentication headers. Both methods block, and raise a `GoogleAuthError` if there is no token now."""

    @property
    def is_fresh(self) -> bool:
        """Whether `headers` returns without a request."""
        ...

    def headers(self) -> Mapping[str, str]:
        """Returns the headers of a request."""
        ...

    def renew(self, rejected: Mapping[str, str]) -> bool:
        """Returns, after a 401, whether there are other headers than the rejected ones."""
        ...


class FixedAccess:
    """Fixed headers: a key, or none."""

    is_fresh = True

    def __init__(self, headers: Mapping[str, str] | None = None) -> None:
        self._headers = dict(headers or {})

    def headers(self) -> Mapping[str, str]:
        """Returns the headers of a request."""
        return self._headers

    def renew(self, rejected: Mapping[str, str]) -> bool:
        """Returns `False`: the headers are fixed."""
        return False


class WithHeaders:
    """Authentication headers, and further ones, which replace equal ones.

    Args:
        access: The authentication headers.
        headers: The further ones.
    """

    def __init__(self, access: Access, headers: Mapping[str, str]) -> None:
        self._access = access
        self._added = dict(headers)
        self._names = {name.lower() for name in headers}

    @property
    def is_fresh(self) -> bool:
        """Whether `headers` returns without a request."""
        return self._access.is_fresh

    def headers(self) -> Mapping[str, str]:
        """Returns the headers of a request."""
        return {**self._without_added(self._access.headers()), **self._added}

    def renew(self, rejected: Mapping[str, str]) -> bool:
        """Returns, after a 401, whether there are other headers than the rejected ones."""
        return self._access.renew(self._without_added(rejected))

    def _without_added(self, headers: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in headers.items() if name.lower() not in self._names}


_NO_SECRETS = frozenset({"x-goog-user-project"})


def secrets_in(headers: Mapping[str, str]) -> list[str]:
    """Returns the keys and tokens of authentication headers, which a server may quote in an error."""
    values = {name: value for name, value in headers.items() if name.lower() not in _NO_SECRETS}
    return [*secrets_of(values, values), *(value.rpartition(" ")[2] for value in values.values())]


def tls_context(certificate: tuple[str, str]) -> ssl.SSLContext:
    """Returns the TLS settings of a client with a certificate.

    Args:
        certificate: Files of the certificate and its private key, in PEM.

    Raises:
        JobSpecError: A file does not exist here, or is of another format.
    """
    context = ssl.create_default_context()
    try:
        # Without the function, OpenSSL asks the terminal for the password of a key.
        context.load_cert_chain(*certificate, password=lambda: b"")
    except OSError as error:
        named = " and ".join(map(repr, dict.fromkeys(certificate)))
        raise JobSpecError(
            f"`model.auth.certificate_file`: {named} cannot be used here: {type(error).__name__}: "
            f"{error.strerror or error}. Expected a certificate in PEM and its private key without a password, "
            "on every machine that sends requests."
        ) from None
    return context


def open_access(
    model: Model,
    environment: Mapping[str, str] | None = None,
    *,
    find_credentials: FindCredentials = default_credentials,
    request: Callable[[], Request] = token_request,
) -> Access:
    """Returns the authentication headers of a model.

    Args:
        model: The model.
        environment: Holds the API key if the environment of this process does not.
        find_credentials: Returns the credentials of tokens.
        request: Returns the transport of token requests.

    Raises:
        JobSpecError: There is no key, or there are no credentials; or a header has no value.
    """
    access = _open_authentication(model, environment or {}, find_credentials, request)
    headers = {
        name: _header_value(name, variable, (environment or {}, os.environ))
        for name, variable in model.api.headers.items()
    }
    return WithHeaders(access, headers) if headers else access


def _header_value(name: str, variable: str, environments: Sequence[Mapping[str, str]]) -> str:
    """Returns the value of a header, which no message repeats.

    Raises:
        JobSpecError: There is none, or no header can have it.
    """
    value = (value_of([variable], environments) or "").strip()
    if value and value.isprintable() and value.isascii():
        return value
    fault = "is no printable ASCII text" if value else "is not set"
    raise JobSpecError(
        f"`model.headers`: the value of {name!r} is in the environment variable {variable!r}, which {fault}. Set "
        "it, or have the value in the field `headers` of the connection's extra; on Dataflow, in "
        "`runner.environment_secrets`."
    )


def _open_authentication(
    model: Model,
    environment: Mapping[str, str],
    find_credentials: FindCredentials,
    request: Callable[[], Request],
) -> Access:
    api = model.api
    match api.authentication:
        case "none":
            return FixedAccess()
        case "api_key" | "oauth":
            key = api.key(environment, os.environ)
            if key is None and api.requires_key:
                names = " or ".join(f"`{name}`" for name in api.key_variables)
                project = ", nor `model.project` (Vertex AI)" if "project" in type(model).model_fields else ""
                raise JobSpecError(
                    f"{api.service} needs a key: found neither a password in the `llmbeam` connection nor {names} "
                    f"in the environment{project}."
                )
            if key is None:
                return FixedAccess()
            if api.authentication == "api_key":
                return FixedAccess({api.key_header[0]: f"{api.key_header[1]}{key}"})
            # Imported here, so that google-auth is loaded only if it is needed.
            from airflow_provider_llmbeam.transport.client_credentials import ClientCredentials

            assert isinstance(model, OpenAIModel)
            return GoogleToken(ClientCredentials(model.auth, key), request(), renews_rejected=True)
        case "access_token":
            return GoogleToken(find_credentials(f"{api.service} (model {model.name!r})", None), request())
        case "id_token":
            audience: str | None = getattr(model, "id_token_audience", None)
            found = find_credentials("Cloud Run (`model.id_token_audience`)", audience)
            return GoogleToken(found, request(), renews_rejected=True)
