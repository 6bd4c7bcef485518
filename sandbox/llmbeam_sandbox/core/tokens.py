"""Identity tokens of the sandbox: unsigned JSON web tokens, written and read."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

LIFETIME_SECONDS = 3599


def identity_token(audience: str) -> str:
    """Returns an identity token for an audience, without a signature."""
    now = int(time.time())
    claims = {"aud": audience, "iss": "https://accounts.google.com", "iat": now, "exp": now + LIFETIME_SECONDS}
    header = {"alg": "none", "typ": "JWT"}
    parts = [*(json.dumps(part).encode() for part in (header, claims)), b"unsigned"]
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


def claims_of(token: str) -> dict[str, Any]:
    """Returns the claims of a JSON web token, {} for any other text; the signature is not verified."""
    try:
        found = json.loads(decoded(token.split(".")[1] if token.count(".") == 2 else "") or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def decoded(part: str) -> bytes:
    """Decodes a part of a JSON web token.

    Raises:
        ValueError: It is not Base64.
    """
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
