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


def test_the_proxy_of_the_environment_is_asked_for_addresses_beyond_it(monkeypatch, server):
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert asyncio.run(fetch("http://model.invalid")) == "OK"


def test_an_address_that_needs_no_proxy_is_asked_itself(monkeypatch, server):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert asyncio.run(fetch(server.url)) == "OK"
