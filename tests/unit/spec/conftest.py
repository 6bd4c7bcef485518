from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def job_data(**parts: Any) -> dict[str, Any]:
    """Returns the data of a minimal job, with some parts replaced."""
    return {
        "name": "nightly",
        "source": {"type": "files", "uri": "in/*.jsonl", "key": ["id"]},
        "prompt": {"template": "Summarise: {{ row.text }}"},
        "model": {"type": "echo"},
        "sink": {"type": "files", "uri": "out/"},
        **parts,
    }


@pytest.fixture(scope="session")
def job() -> Callable[..., dict[str, Any]]:
    return job_data
