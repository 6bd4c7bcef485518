"""A service account that exists nowhere, and the tokens it is given."""

from __future__ import annotations

import base64
import binascii
import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import web

from airflow_provider_llmbeam.sandbox.core.google_errors import google_error
from airflow_provider_llmbeam.sandbox.core.responses import encoded

TOKEN_SECONDS = 3599
TOKEN = "sandbox-access-token"
TOKEN_URI = "https://oauth2.googleapis.com/token"
_ACCOUNTS = r"/v1/projects/-/serviceAccounts/{account}"


def write_service_account(file: Path, project: str) -> None:
    """Write the key file of a service account of `project`, with an RSA key of its own."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    account = {
        "type": "service_account",
        "project_id": project,
        "private_key_id": "sandbox",
        "private_key": pem.decode(),
        "client_email": f"sandbox@{project}.iam.gserviceaccount.com",
        "client_id": "0",
        "auth_uri": "https://accounts.google.com/o/oauth2/auth",
        "token_uri": TOKEN_URI,
        "universe_domain": "googleapis.com",
    }
    file.touch(mode=0o600)
    file.write_text(json.dumps(account, indent=2) + "\n")


def routes() -> list[web.RouteDef]:
    """Return the routes of the token service and of what google-auth asks about an account."""

    async def token(request: web.Request) -> web.Response:
        if not request.host.endswith(".googleapis.com"):
            # Only behind the proxy: at the sandbox's own address no account is known.
            reply = google_error(404, f"The requested URL {request.path} was not found on this server.")
            return web.Response(status=404, body=reply.body, headers=reply.all_headers())
        fields = dict(parse_qsl((await request.read()).decode()))
        audience = claims_of(fields.get("assertion", "")).get("target_audience")
        answer: dict[str, Any] = {"token_type": "Bearer", "expires_in": TOKEN_SECONDS}
        answer |= {"id_token": _id_token(audience)} if audience else {"access_token": TOKEN}
        return _json(answer)

    async def access_token(request: web.Request) -> web.Response:
        expires = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + TOKEN_SECONDS))
        return _json({"accessToken": TOKEN, "expireTime": expires})

    async def identity_token(request: web.Request) -> web.Response:
        fields = json.loads(await request.read() or b"{}")
        return _json({"token": _id_token(str(fields.get("audience") or ""))})

    async def allowed_locations(request: web.Request) -> web.Response:
        # google-auth asks this in a thread of its own; "0x0" means anywhere.
        return _json({"locations": [], "encodedLocations": "0x0"})

    return [
        web.post("/token", token),
        web.post("/oauth2/v4/token", token),
        web.post(f"{_ACCOUNTS}:generateAccessToken", access_token),
        web.post(f"{_ACCOUNTS}:generateIdToken", identity_token),
        web.get(f"{_ACCOUNTS}/allowedLocations", allowed_locations),
    ]


def claims_of(token: str) -> dict[str, Any]:
    """Return what a JSON web token says, {} when it is none; its signature is not looked at."""
    body = token.split(".")[1] if token.count(".") == 2 else ""
    try:
        found = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)) or b"{}")
    except (ValueError, binascii.Error):
        return {}
    return found if isinstance(found, dict) else {}


def _id_token(audience: str) -> str:
    now = int(time.time())
    claims = {"aud": audience, "iss": "https://accounts.google.com", "iat": now, "exp": now + TOKEN_SECONDS}
    pieces = [encoded({"alg": "none", "typ": "JWT"}), encoded(claims), b"unsigned"]
    return ".".join(base64.urlsafe_b64encode(piece).decode().rstrip("=") for piece in pieces)


def _json(value: object) -> web.Response:
    return web.Response(body=encoded(value), content_type="application/json")
