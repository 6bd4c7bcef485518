"""Versions of the files in which a job keeps its state: one that a newer package wrote is refused.

Each format has version 1. A change that this version of the package would misread writes `"version": 2`; what it
would pass over is added without one.
"""

from __future__ import annotations

import json
from typing import Any

from airflow_provider_llmbeam.exceptions import JobFailedError

VERSION = 1


def is_newer(version: Any) -> bool:
    """Returns whether a file with this `version` was written by a newer version of the package."""
    return type(version) is int and version > VERSION


def refuse_newer(uri: str, content: bytes) -> None:
    """Refuses a JSON file of a newer version; one that is torn has none.

    Raises:
        JobFailedError: A newer version of the package wrote it.
    """
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return
    if isinstance(found, dict) and is_newer(found.get("version")):
        raise newer_state(uri, found["version"])


def newer_state(uri: str, version: int) -> JobFailedError:
    """Returns the error about a file that a newer version of the package wrote."""
    return JobFailedError(
        f"{uri!r} has version {version} of its format, and this version of the package knows {VERSION}. A newer "
        "one wrote it, e.g. before a rollback, or on another Airflow with the same `state_uri`. It says what is "
        "paid for, so nothing is sent. Use the newer version of the package, also on the workers."
    )
