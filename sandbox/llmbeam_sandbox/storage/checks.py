"""Checks of the emulated Cloud Storage: names, preconditions, hashes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

from llmbeam_sandbox.core.checks import check_kms_key, is_region
from llmbeam_sandbox.core.rest import RestError

MAX_NAME_BYTES = 1024
MAX_SOURCES = 32
"""Objects that one compose accepts. Source: docs.cloud.google.com/storage/docs/json_api/v1/objects/compose."""


class Version(Protocol):
    """The version of an object."""

    @property
    def generation(self) -> int:
        """Number of the generation."""

    @property
    def metageneration(self) -> int:
        """Number of the metageneration."""


def check_bucket_name(name: str) -> None:
    """Checks the name of a bucket.

    Raises:
        RestError: It is invalid.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]", name):
        raise RestError(400, f"Invalid bucket name: '{name}'", "invalid")


def check_object_name(name: str) -> None:
    """Checks the name of an object.

    Raises:
        RestError: It is empty or too long.
    """
    if not 0 < len(name.encode()) <= MAX_NAME_BYTES:
        raise RestError(400, "Required" if not name else f"Invalid object name: {name[:80]}", "invalid")


def default_key(bucket: Mapping[str, Any]) -> str:
    """Returns the key of Cloud KMS for objects that are written without one; "" for one of Google."""
    return str((bucket.get("encryption") or {}).get("defaultKmsKeyName") or "")


def check_key(kms_key_name: str | None, bucket: Mapping[str, Any]) -> None:
    """Checks a key of Cloud KMS; a bucket without a region takes those of any location.

    Args:
        kms_key_name: The key; empty for none.
        bucket: Fields of the bucket.

    Raises:
        RestError: It is malformed, or elsewhere.
    """
    location = str(bucket.get("location") or "")
    check_kms_key(kms_key_name, location if is_region(location.lower()) else None)


def check_hashes(expected: Mapping[str, object], hashes: Mapping[str, str]) -> None:
    """Checks the hashes that a client sent.

    Args:
        expected: Fields of the client: `crc32c` and `md5Hash`, both optional.
        hashes: Hashes of the bytes that arrived.

    Raises:
        RestError: They differ.
    """
    for name, found in hashes.items():
        given = expected.get(name)
        if given and given != found:
            kind = "MD5 hash" if name == "md5Hash" else "CRC32C"
            message = f'Provided {kind} "{given}" doesn\'t match calculated {kind} "{found}".'
            raise RestError(400, message, "invalid")


def check_preconditions(found: Version | None, query: Mapping[str, str], source: str = "") -> None:
    """Checks the preconditions of a request.

    Args:
        found: The live generation, if any.
        query: Preconditions, e.g. `ifGenerationMatch`; 0 requires that there is no object.
        source: "Source" for the preconditions on the source of a copy.

    Raises:
        RestError: One does not hold: 412, or 304 for a "not match".
    """
    current = {
        "Generation": str(found.generation) if found else "0",
        "Metageneration": str(found.metageneration) if found else "0",
    }
    for name, value in current.items():
        if query.get(f"if{source}{name}Match", value) != value:
            raise _unmet("If-Match", 412)
        if query.get(f"if{source}{name}NotMatch") == value:
            raise _unmet("If-None-Match", 304)


def _unmet(location: str, http_status: int) -> RestError:
    message = "At least one of the pre-conditions you specified did not hold."
    return RestError(http_status, message, "conditionNotMet", location)
