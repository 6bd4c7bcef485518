"""Jobs that mask personal data, and a search for what was not masked."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from tests.leaks import CopyingModel, leaked
from tests.pipeline.conftest import Job


def job_of(directory: Path, model: CopyingModel, **privacy: Any) -> Job:
    job = Job(directory, {"type": "openai", "name": "m", "base_url": model.url})
    job.spec |= {"safety": {"privacy": privacy}}
    return job


def leaks(directory: Path, planted: Collection[str], *besides: Path) -> list[tuple[str, str]]:
    """Returns the files with planted values, also where they are encoded."""
    paths = [path for path in directory.rglob("*") if path.is_file() and path not in besides]
    return leaked(
        {path.name: path.read_bytes() for path in paths if not path.name.startswith("answers-")}, planted
    )
