from __future__ import annotations

import asyncio

import pytest

from airflow_provider_llmbeam.engine.backends.http import open_session
from airflow_provider_llmbeam.sandbox import Sandbox


async def fetch(address: str) -> str:
    async with open_session(address) as session, session.get(f"{address}/") as response:
        return await response.text()


@pytest.fixture
def server():
    with Sandbox() as running:
        yield running


def test_requests_go_through_the_proxy_of_the_environment(monkeypatch, server):
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert asyncio.run(fetch("http://model.invalid")) == "OK"


def test_requests_to_addresses_in_no_proxy_are_direct(monkeypatch, server):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert asyncio.run(fetch(server.url)) == "OK"
