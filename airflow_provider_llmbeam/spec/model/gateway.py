"""What a gateway before a model wants of each request: headers, a query, and authentication."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from airflow_provider_llmbeam.redaction import has_secret_form, is_secret_name
from airflow_provider_llmbeam.spec.base import FieldFaultError, SpecModel, http_address, variable_name

#: Headers by which the client itself frames a request.
_OF_THE_CLIENT = frozenset(
    {"accept-encoding", "connection", "content-encoding", "content-length", "content-type", "host"}
    | {"transfer-encoding", "upgrade"}
)


def header_variable(name: str) -> str:
    """Returns the environment variable of the value that a connection has for a header."""
    return f"LLMBEAM_HEADER_{re.sub('[^A-Za-z0-9]', '_', name).upper()}"


def _check_headers(headers: dict[str, str]) -> dict[str, str]:
    for name, variable in headers.items():
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):  # RFC 9110, section 5.6.2
            raise ValueError("has a name that no header can have")
        if name.lower() in _OF_THE_CLIENT:
            raise ValueError(f"has {name!r}, which the client of the server sets itself")
        if not variable:
            raise ValueError(f"must name the environment variable with the value of {name!r}")
    return {
        # A name that only this package makes needs no entry in a Dag file, see `spec.allowed`.
        name: variable if variable == header_variable(name) else variable_name(variable)
        for name, variable in headers.items()
    }


def _check_query(query: dict[str, str]) -> dict[str, str]:
    for name, value in query.items():
        if is_secret_name(name) or name.lower().endswith("key") or has_secret_form(value):
            raise ValueError(
                f"must not hold a secret, as {name!r} may, for it is written to logs and reports: gateways take "
                "keys in a header, too, see `model.headers`"
            )
    return query


#: Environment variables with the values of headers, by the name of the header.
Headers = Annotated[dict[str, str], AfterValidator(_check_headers)]
#: Values that are no secrets, by the name of the parameter.
Query = Annotated[dict[str, str], AfterValidator(_check_query)]


class Auth(SpecModel):
    """How requests to a server with the OpenAI API authenticate. A text is the `type`.

    Attributes:
        type: Header of the key: `bearer` is `Authorization`. With `oauth` the key is the secret of a client, for
            which `token_url` gives access tokens (client credentials, RFC 6749); they are renewed before they
            expire, and after a 401.
        token_url: Address of the token endpoint, for `oauth`.
        client_id: Id of the client, for `oauth`. A connection has it as login.
        scope: Scopes of the token, separated by blanks, for `oauth`.
        certificate_file: Certificate of the client in PEM, for mutual TLS; a file where the job runs.
        key_file: Its private key, without a password. `None`: the certificate's file holds it, too.
    """

    text_field: ClassVar[str] = "type"

    type: Literal["bearer", "api-key", "x-api-key", "oauth"] = "bearer"
    token_url: str | None = None
    client_id: Annotated[str, Field(min_length=1)] | None = None
    scope: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None

    _address = field_validator("token_url")(http_address)

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = {name: getattr(self, name) for name in ("token_url", "client_id")}
        for name, value in given.items():
            if self.type == "oauth" and value is None:
                raise FieldFaultError(name, "this field is needed with `type` 'oauth'", None)
        if self.type != "oauth" and (other := next((name for name, value in given.items() if value), None)):
            raise FieldFaultError(other, f"is for `type` 'oauth', and the type is {self.type!r}")
        if self.key_file is not None and self.certificate_file is None:
            raise FieldFaultError("certificate_file", "this field is needed with `key_file`", None)
        return self

    @property
    def key_header(self) -> tuple[str, str]:
        """Header of the key, and the text before the key."""
        return ("Authorization", "Bearer ") if self.type == "bearer" else (self.type, "")

    @property
    def certificate(self) -> tuple[str, str] | None:
        """Files of the certificate of the client, and of its private key."""
        if self.certificate_file is None:
            return None
        return self.certificate_file, self.key_file or self.certificate_file
