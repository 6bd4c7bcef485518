"""Authentication of the requests to a model: the one place that looks up its key or its credentials."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.model import Model
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
        JobSpecError: There is no key, or there are no credentials.
    """
    api = model.api
    match api.authentication:
        case "none":
            return FixedAccess()
        case "api_key":
            if key := api.key(environment or {}, os.environ):
                return FixedAccess({api.key_header[0]: f"{api.key_header[1]}{key}"})
            if api.requires_key:
                names = " or ".join(f"`{name}`" for name in api.key_variables)
                project = ", nor `model.project` (Vertex AI)" if "project" in type(model).model_fields else ""
                raise JobSpecError(
                    f"{api.service} needs a key: found neither a password in the `llmbeam` connection nor {names} "
                    f"in the environment{project}."
                )
            return FixedAccess()
        case "access_token":
            return GoogleToken(find_credentials(f"{api.service} (model {model.name!r})", None), request())
        case "id_token":
            audience: str | None = getattr(model, "id_token_audience", None)
            found = find_credentials("Cloud Run (`model.id_token_audience`)", audience)
            return GoogleToken(found, request(), renews_rejected=True)
