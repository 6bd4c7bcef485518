from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from airflow_provider_llmbeam.sandbox import ManualClock, Sandbox


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="session")
def server() -> Iterator[Sandbox]:
    with Sandbox() as running:
        yield running


@pytest.fixture
def sandbox(server: Sandbox) -> Sandbox:
    server.reset()
    return server


@pytest.fixture
def http(sandbox: Sandbox) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=sandbox.url, headers={"x-goog-api-key": "k"}, timeout=60) as client:
        yield client
