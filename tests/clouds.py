"""Puts a sandbox in place of Google's hosts, for this process and those that it starts."""

from __future__ import annotations

import ssl
import sys
from collections.abc import Iterator, Mapping

import aiohttp
import pytest
from llmbeam_sandbox import Proxy, Sandbox


def use_environment(monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str]) -> None:
    """Sets environment variables until the end of the test."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    forget_credentials()


def forget_credentials() -> None:
    """Has Beam, which reads the credentials once in a process, read those of this environment."""
    if (auth := sys.modules.get("apache_beam.internal.gcp.auth")) is not None:
        auth._Credentials._credentials_init = False
    if (files := sys.modules.get("airflow_provider_llmbeam.pipeline.storage")) is not None:
        files._cloud_storage.cache_clear()


def trust_in_aiohttp(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets aiohttp, which has read the certificates, trust those of the proxy."""
    context = ssl.create_default_context(cafile=proxy.environment()["SSL_CERT_FILE"])
    monkeypatch.setattr(aiohttp.connector, "_SSL_CONTEXT_VERIFIED", context)


def for_one_test(served: tuple[Sandbox, Proxy], monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    """Yields the sandbox of a module, emptied; every fault that the test queues must be consumed."""
    running, proxy = served
    running.reset()
    use_environment(monkeypatch, proxy.environment())
    yield running
    running.faults.assert_all_consumed()


def authorized(sandbox: Sandbox) -> dict[str, str]:
    """Returns the headers of a request that needs the token of the sandbox."""
    return {"Authorization": f"Bearer {sandbox.token}"}
