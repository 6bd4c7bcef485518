"""The binary of Prism for the tests."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

import pytest


def prism_binary() -> str:
    """Returns the binary of `PRISM_LOCATION` or `scripts/build-prism`; without one the test is skipped."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    binary = os.environ.get("PRISM_LOCATION") or str(cache / f"llmbeam/prism-{version('apache-beam')}/prism")
    if not Path(binary).is_file():
        pytest.skip(f"there is no binary of Prism at {binary!r}; `scripts/build-prism` builds it, with Go")
    return binary
