"""The encryption of personal data: AES-SIV (RFC 5297), which is deterministic and authenticated."""

from __future__ import annotations

import base64
import json
import os
from functools import lru_cache
from typing import Any

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.safety import Privacy

#: Shortest secret, in characters.
MIN_SECRET = 16
#: Size of the synthetic IV, with which a ciphertext begins.
IV_BYTES = 16

_INFO = b"llmbeam privacy 1"
_KEY_BYTES = 64  # AES-256
#: Associated data of what has an owner, beside the owner; that of a value is its kind alone.
_OWNED = b"owner"
#: The field of a value that is bytes, which JSON does not have.
_BASE64 = "base64"


class WrongKeyError(Exception):
    """A value was encrypted with another key, or was changed since then."""


class Cipher:
    """Encrypts values: equal values of one kind become equal ciphertexts, so that prompts remain equal.

    Args:
        secret: Secret from which the key is derived.
    """

    def __init__(self, secret: str) -> None:
        # Imported here, as jobs without privacy do not need it.
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESSIV
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        self._faults = (InvalidTag, ValueError)  # that of base64 is a ValueError
        key = HKDF(SHA256(), length=_KEY_BYTES, salt=None, info=_INFO).derive(secret.encode())
        self._siv = AESSIV(key)

    def seal(self, kind: str, value: Any) -> bytes:
        """Returns the ciphertext of a text, a number or bytes; it begins with the synthetic IV."""
        return self._siv.encrypt(json.dumps(value, default=_of_bytes).encode(), [kind.encode()])

    def open(self, kind: str, sealed: str) -> Any:
        """Returns a value.

        Args:
            kind: Its kind.
            sealed: Its ciphertext as base64.

        Raises:
            WrongKeyError: It was encrypted with another key or as another kind, or it is not intact.
        """
        try:
            found = json.loads(self._siv.decrypt(base64.b64decode(sealed, validate=True), [kind.encode()]))
        except self._faults:
            raise WrongKeyError("a value was encrypted with another key, or changed since then") from None
        return base64.b64decode(found[_BASE64]) if isinstance(found, dict) else found

    def seal_for(self, owner: bytes, content: bytes) -> str:
        """Returns the ciphertext of bytes as base64, which only opens for the same owner."""
        return base64.b64encode(self._siv.encrypt(content, [_OWNED, owner])).decode()

    def open_for(self, owner: bytes, sealed: str) -> bytes:
        """Returns the bytes that were sealed for an owner.

        Raises:
            WrongKeyError: They were sealed with another key or for another owner, or are not intact.
        """
        try:
            return self._siv.decrypt(base64.b64decode(sealed, validate=True), [_OWNED, owner])
        except self._faults:
            raise WrongKeyError("it was sealed with another key or for another owner, or changed since") from None


def _of_bytes(value: bytes) -> dict[str, str]:
    return {_BASE64: base64.b64encode(value).decode()}


def cipher_of(privacy: Privacy) -> Cipher:
    """Returns the cipher of the secret in the environment variable that a job names.

    Raises:
        JobSpecError: There is no secret, or it is too short.
    """
    variable = privacy.key_env
    secret = os.environ.get(variable, "")
    if not secret and privacy.key_conn_id is not None:
        raise JobSpecError(
            f"`safety.privacy.key_conn_id`: Airflow alone reads connection {privacy.key_conn_id!r}, and the "
            f"environment variable {variable!r} with its secret is not set. Name the task, `dags/x.py::task`, in "
            "place of JSON, or set the variable; on Dataflow, name it in `runner.environment_secrets`."
        )
    if len(secret) < MIN_SECRET:
        fault = f"has {len(secret)} characters" if secret else "is not set"
        raise JobSpecError(
            f"`safety.privacy.key_env`: the environment variable {variable!r} {fault}. Expected a secret of at "
            f"least {MIN_SECRET} characters for the placeholders; on Dataflow, name it in "
            "`runner.environment_secrets`."
        )
    return _cipher(secret)


_cipher = lru_cache(8)(Cipher)
