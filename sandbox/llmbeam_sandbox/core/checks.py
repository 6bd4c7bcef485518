"""Checks that several Google APIs share, and the project number that they answer with."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping

from llmbeam_sandbox.core.rest import RestError

_REGION = re.compile(r"[a-z]+-[a-z]+\d{1,2}")
_KMS_KEY = re.compile(r"projects/[^/]+/locations/([a-z0-9-]+)/keyRings/[\w-]{1,63}/cryptoKeys/[\w-]{1,63}")
_LABEL = re.compile(r"[a-z0-9_-]{0,63}")


def project_number(project: str) -> str:
    """Returns the number of a project; the real services use it in names, whatever the caller wrote."""
    return project if project.isdecimal() else str(100_000_000_000 + zlib.crc32(project.encode()))


def is_region(location: str) -> bool:
    """Returns whether a location has the form of a region."""
    return _REGION.fullmatch(location) is not None


def check_location(location: str) -> None:
    """Checks that a location is a region; the wildcard "-" is none.

    Raises:
        RestError: It is not.
    """
    if not is_region(location):
        raise RestError(
            400, f"Invalid location {location!r}: it must be a region, and cannot be the '-' wildcard."
        )


def check_kms_key(name: object, location: str | None = None) -> None:
    """Checks the name of a key of Cloud KMS; an empty one names none.

    Args:
        name: The name.
        location: Location that the key must be in; None where the sandbox knows none.

    Raises:
        RestError: It is no name of a key, or that of a key in another location; the words are invented.
    """
    if not name:
        return
    found = _KMS_KEY.fullmatch(str(name))
    if found is None:
        raise RestError(
            400,
            f"Invalid Cloud KMS key name {name!r}: it must have the format "
            "projects/{project}/locations/{location}/keyRings/{key_ring}/cryptoKeys/{crypto_key}.",
        )
    if location is not None and found[1].lower() != location.lower():
        raise RestError(
            400, f"The Cloud KMS key {name!r} must be in the location of the resource, {location.lower()}."
        )


def check_labels(labels: Mapping[str, str]) -> None:
    """Checks the labels of a resource.

    Raises:
        RestError: A key or a value is too long, or has a character that is not allowed.
    """
    for key, value in labels.items():
        if not key or not _LABEL.fullmatch(key) or not key[0].isalpha() or not _LABEL.fullmatch(str(value)):
            raise RestError(
                400,
                f"List of found errors:\t1.Field: labels; Message: The label {key!r}={value!r} is invalid: keys "
                "and values may have 63 lowercase letters, digits, underscores and dashes.\t",
            )
