from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from airflow_provider_llmbeam.pipeline.reporting.progress import PROGRESS
from airflow_provider_llmbeam.spec import JobSpec


def job_of(**parts: Any) -> JobSpec:
    return JobSpec.parse(
        {
            "name": "nightly",
            "source": {"uri": "in/*.jsonl", "key": ["id"]},
            "prompt": {"template": "Say {{ row.text }}"},
            "model": {"type": "echo"},
            "sink": {"uri": "out/"},
            **parts,
        }
    )


@pytest.fixture(scope="session")
def job() -> Callable[..., JobSpec]:
    return job_of


@pytest.fixture(autouse=True)
def _progress_from_nothing() -> Iterator[None]:
    PROGRESS.reset()
    yield
    PROGRESS.reset()
