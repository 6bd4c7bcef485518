"""Access tokens of OAuth for a client by its secret (RFC 6749, section 4.4)."""

from __future__ import annotations

import base64
import time
from typing import Any
from urllib.parse import quote_plus, urlencode

from google.auth.credentials import Credentials, TokenState
from google.auth.exceptions import RefreshError

from airflow_provider_llmbeam.redaction import redact
from airflow_provider_llmbeam.spec.model import Auth
from airflow_provider_llmbeam.transport.server_reply import (
    PASSING_STATUSES,
    count_of,
    error_text,
    mapping_of,
    parse_json,
    str_of,
)

#: Lifetime of a token whose server states none, in seconds.
_UNSTATED_SECONDS = 300
#: Part of its lifetime after which a token is renewed; google-auth renews 225 s before the end, so that one of
#: 5 minutes, the default of Keycloak, would serve for 75 s, and a shorter one for one request.
_USED_PART = 0.8


class ClientCredentials(Credentials):
    """Credentials of google-auth that get their token from any OAuth server.

    Args:
        auth: Address of the token endpoint, client and scopes.
        secret: Secret of the client.
    """

    def __init__(self, auth: Auth, secret: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._auth, self._secret = auth, secret
        self._fresh_until = 0.0

    @property
    def token_state(self) -> TokenState:
        """Whether the token can still be used."""
        return TokenState.FRESH if time.monotonic() < self._fresh_until else TokenState.INVALID

    def refresh(self, request: Any) -> None:
        """Gets a token.

        Raises:
            GoogleAuthError: The server refuses it, or cannot be reached.
        """
        # RFC 6749, section 2.3.1: every server takes `Basic`, of the form-encoded id and secret.
        user = f"{quote_plus(self._auth.client_id or '')}:{quote_plus(self._secret)}"
        basic = base64.b64encode(user.encode()).decode()
        form = {"grant_type": "client_credentials", "scope": self._auth.scope or ""}
        asked_at = time.monotonic()
        reply = request(
            url=self._auth.token_url,
            method="POST",
            headers={
                "Authorization": f"Basic {basic}",
                "Content-Type": "application/x-www-form-urlencoded",
                "Accept": "application/json",
            },
            body=urlencode({name: value for name, value in form.items() if value}).encode(),
        )
        fields = mapping_of(parse_json(reply.data))
        token = str_of(fields.get("access_token"))
        if reply.status != 200 or not token:
            said = ": ".join(filter(None, (str_of(fields.get(name)) for name in ("error", "error_description"))))
            shown = error_text(redact(said, (basic, self._secret))) or "no token"
            raise RefreshError(  # type: ignore[no-untyped-call]
                f"{self._auth.token_url} answered HTTP {reply.status}: {shown}",
                retryable=reply.status in PASSING_STATUSES or reply.status >= 500,
            )
        self.token = token
        seconds = count_of(fields.get("expires_in")) or _UNSTATED_SECONDS
        self._fresh_until = asked_at + seconds * _USED_PART
