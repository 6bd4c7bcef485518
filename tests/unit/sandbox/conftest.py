from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

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


@pytest.fixture
def credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Google credentials with a token that is never refreshed; with none Beam looks for some for 25 s."""
    file = tmp_path / "credentials.json"
    account = dict.fromkeys(("client_id", "client_secret", "refresh_token", "token"), "x")
    file.write_text(json.dumps(account | {"type": "authorized_user", "expiry": "2099-01-01T00:00:00Z"}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "llmbeam-sandbox")
