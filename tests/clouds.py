"""Puts a sandbox in place of Google's hosts, for this process and those that it starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from airflow_provider_llmbeam.sandbox import Proxy, Sandbox


def use_environment(monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str]) -> None:
    """Sets environment variables until the end of the test."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def for_one_test(served: tuple[Sandbox, Proxy], monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    """Yields the sandbox of a module, emptied; every fault that the test queues must be consumed."""
    running, proxy = served
    running.reset()
    use_environment(monkeypatch, proxy.environment())
    yield running
    running.faults.assert_all_consumed()
