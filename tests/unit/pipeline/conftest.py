from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from airflow_provider_llmbeam.engine.outcome import Completion
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


def completion_of(**changes: Any) -> Completion:
    return Completion(
        **{
            "text": "Hi.",
            "model": "m-001",
            "finish_reason": "stop",
            "input_tokens": 10,
            "output_tokens": 3,
            "attempts": 1,
            "latency_seconds": 0.5,
            "sent_at": 100.0,
            "answered_at": 101.0,
            **changes,
        }
    )


@pytest.fixture(scope="session")
def job() -> Callable[..., JobSpec]:
    return job_of


@pytest.fixture(scope="session")
def completion() -> Callable[..., Completion]:
    return completion_of


@pytest.fixture(autouse=True)
def _progress_from_nothing() -> Iterator[None]:
    PROGRESS.reset()
    yield
    PROGRESS.reset()
