"""Who may use the services that run code or keep state: callers that know the token of this start."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Iterable, Mapping

from aiohttp import web
from aiohttp.typedefs import Handler

from llmbeam_sandbox.core.responses import google_error

USER = "sandbox"
"""User name of basic authentication; the password is the token."""
REFUSAL = (
    "The sandbox runs code and keeps files, so this request needs the token of its start: as a bearer token, "
    "as the password of basic authentication (http://sandbox:TOKEN@127.0.0.1:PORT), or by the credentials of "
    "`--env`. It is in LLMBEAM_SANDBOX_TOKEN of `--env`, and in the `--ready-file`."
)


class Access:
    """The token of a start, and the callers that it admits.

    Anybody can connect to a port of loopback: other users of the machine, and web pages in a browser.

    Attributes:
        token: The token; another one after each start.
        keys: Keys of service accounts: each returns whether it has signed a JSON web token.
    """

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(24)
        self.keys: list[Callable[[str], bool]] = []

    def renew(self) -> None:
        """Makes another token."""
        self.token = secrets.token_urlsafe(24)

    def is_signed(self, token: str) -> bool:
        """Returns whether a JSON web token is signed with the key of a service account of the sandbox."""
        return any(is_signed(token) for is_signed in self.keys)

    def admits(self, headers: Mapping[str, str]) -> bool:
        """Returns whether a request may be answered.

        Args:
            headers: Its headers; `authorization` in lower case, unless the mapping ignores the case.
        """
        scheme, _, value = headers.get("authorization", "").partition(" ")
        match scheme.lower():
            case "bearer":
                # Some of Google's clients send a token that they have signed, and request none.
                return self._is_token(value) or self.is_signed(value)
            case "basic":
                return self._is_token(user_info(headers).partition(":")[2])
        return False

    def guarded(self, routes: Iterable[web.RouteDef]) -> list[web.RouteDef]:
        """Returns routes that refuse all other requests with 401.

        Clients that can send no header have the token in their address, where the path of a route has `{token}`.
        """
        return [
            web.RouteDef(route.method, route.path, self._guard(route.handler), route.kwargs) for route in routes
        ]

    def _guard(self, handler: Handler) -> Handler:
        async def serve(request: web.Request) -> web.StreamResponse:
            if self.admits(request.headers) or self._is_token(request.match_info.get("token", "")):
                return await handler(request)
            reply = google_error(401, REFUSAL)
            return web.Response(status=401, body=reply.body, headers=reply.all_headers())

        return serve

    def _is_token(self, text: str) -> bool:
        return secrets.compare_digest(text.encode("utf-8", "surrogateescape"), self.token.encode())


def user_info(headers: Mapping[str, str]) -> str:
    """Returns `user:password` of basic authentication; empty without."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(value, validate=True).decode()
    except ValueError:
        return ""
