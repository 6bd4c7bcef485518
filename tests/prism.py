"""The binary of Prism for the tests."""

from __future__ import annotations

import fcntl
import os
from importlib.metadata import version
from pathlib import Path

import pytest


def prism_binary() -> str:
    """Returns the binary of `PRISM_LOCATION` or `scripts/build-prism`; skips the test if there is none."""
    if given := os.environ.get("PRISM_LOCATION"):
        return given
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    binary = cache / f"llmbeam/prism-{version('apache-beam')}/prism"
    if binary.parent.is_dir():
        with binary.with_name("lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # `scripts/test` builds it beside the tests
    if not binary.is_file():
        pytest.skip(f"there is no binary of Prism at '{binary}'; `scripts/build-prism` builds it, with Go")
    return str(binary)
