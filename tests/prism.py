"""The binary of Prism for the tests."""

from __future__ import annotations

import fcntl
import os
import time
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pytest

#: Longest time that a test waits for the build, in seconds; less than the timeout of a test.
BUILD_SECONDS = 200.0


def prism_binary() -> str:
    """Returns the binary of `PRISM_LOCATION` or `scripts/build-prism`; skips the test if there is none."""
    if given := os.environ.get("PRISM_LOCATION"):
        return given
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    binary = home / f"llmbeam/prism-{version('apache-beam')}/prism"
    if not is_built(binary):
        pytest.skip(f"there is no binary of Prism at '{binary}'; `scripts/build-prism` builds it, with Go")
    return str(binary)


@cache
def is_built(target: Path) -> bool:
    """Whether a file or folder is there, once `scripts/test`, which builds it beside the tests, has built it."""
    if not target.parent.is_dir():
        return False
    deadline = time.monotonic() + BUILD_SECONDS
    with target.with_name("lock").open("w") as lock:
        while time.monotonic() < deadline:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.2)
            else:
                return target.exists()
    return False
