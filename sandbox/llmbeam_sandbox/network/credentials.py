"""The service account of the sandbox, and the token service."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import web

from llmbeam_sandbox.core.access import Access
from llmbeam_sandbox.core.responses import encoded, google_error
from llmbeam_sandbox.core.tokens import LIFETIME_SECONDS, claims_of, decoded, identity_token

TOKEN_URI = "https://oauth2.googleapis.com/token"
_ACCOUNTS = r"/v1/projects/-/serviceAccounts/{account}"


def write_service_account(file: Path, project: str) -> Callable[[str], bool]:
    """Writes the key file of a service account of `project`, with a new RSA key.

    Returns:
        A function that returns whether a JSON web token is signed with the key, and has not expired.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import padding, rsa

    # Each client that is made loads the key, which takes 0.07 s of CPU time with 2048 bits, and 0.01 s with 1024.
    key = rsa.generate_private_key(public_exponent=65537, key_size=1024)
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
    public_key = key.public_key()

    def is_signed(token: str) -> bool:
        signed, _, signature = token.rpartition(".")
        try:
            public_key.verify(decoded(signature), signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        except (InvalidSignature, ValueError):
            return False
        return float(claims_of(token).get("exp", 0)) > time.time()

    return is_signed


def routes(access: Access) -> list[web.RouteDef]:
    """Returns the routes of the token service, and of the requests of google-auth about an account.

    Args:
        access: Its token is the access token of all accounts.
    """

    async def token(request: web.Request) -> web.Response:
        if not request.host.endswith(".googleapis.com"):
            # Only behind the proxy: the sandbox's own address has no accounts.
            reply = google_error(404, f"The requested URL {request.path} was not found on this server.")
            return web.Response(status=404, body=reply.body, headers=reply.all_headers())
        fields = dict(parse_qsl((await request.read()).decode()))
        assertion = fields.get("assertion", "")
        if not access.is_signed(assertion):
            refusal = {"error": "invalid_grant", "error_description": "Invalid JWT Signature."}
            return web.json_response(refusal, status=400)
        audience = claims_of(assertion).get("target_audience")
        answer: dict[str, Any] = {"token_type": "Bearer", "expires_in": LIFETIME_SECONDS}
        answer |= {"id_token": identity_token(audience)} if audience else {"access_token": access.token}
        return _json(answer)

    async def access_token(request: web.Request) -> web.Response:
        expires = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + LIFETIME_SECONDS))
        return _json({"accessToken": access.token, "expireTime": expires})

    async def account_identity_token(request: web.Request) -> web.Response:
        fields = json.loads(await request.read() or b"{}")
        return _json({"token": identity_token(str(fields.get("audience") or ""))})

    async def allowed_locations(request: web.Request) -> web.Response:
        # google-auth requests this in a thread of its own; "0x0" means anywhere.
        return _json({"locations": [], "encodedLocations": "0x0"})

    return [
        web.post("/token", token),
        web.post("/oauth2/v4/token", token),
        *access.guarded(
            [
                web.post(f"{_ACCOUNTS}:generateAccessToken", access_token),
                web.post(f"{_ACCOUNTS}:generateIdToken", account_identity_token),
            ]
        ),
        web.get(f"{_ACCOUNTS}/allowedLocations", allowed_locations),
    ]


def _json(value: object) -> web.Response:
    return web.Response(body=encoded(value), content_type="application/json")
