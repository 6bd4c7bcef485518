from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from llmbeam_sandbox import ManualClock, Sandbox

pytest_plugins = ["tests.plugin", "tests.contract.plugin"]

#: Modules that the loop needs: the faults that other tests stand on.
LOOP = ("test_faults.py", "test_control.py")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Moves the emulators' own tests to the full tier."""
    if item.path.name not in LOOP:
        item.add_marker(pytest.mark.full)


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
