"""An emulated cloud on loopback: unmodified Gemini, OpenAI, storage, BigQuery and Dataflow clients talk to it.

Nothing here is imported by the rest of the package, and nothing of the rest is imported here.
`FIDELITY.md` says what is emulated and what is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_llmbeam.sandbox.core.clock import ManualClock
    from airflow_provider_llmbeam.sandbox.core.faults import Fault
    from airflow_provider_llmbeam.sandbox.models.answers import prompt_sha256
    from airflow_provider_llmbeam.sandbox.models.latency import Latency
    from airflow_provider_llmbeam.sandbox.models.quota import FixedWindow, Quota
    from airflow_provider_llmbeam.sandbox.network.proxy import Proxy
    from airflow_provider_llmbeam.sandbox.server import Sandbox

__all__ = ["Fault", "FixedWindow", "Latency", "ManualClock", "Proxy", "Quota", "Sandbox", "prompt_sha256"]

_HOMES = {
    "Fault": "core.faults",
    "FixedWindow": "models.quota",
    "Latency": "models.latency",
    "ManualClock": "core.clock",
    "Proxy": "network.proxy",
    "Quota": "models.quota",
    "Sandbox": "server",
    "prompt_sha256": "models.answers",
}


def __getattr__(name: str) -> Any:
    """Load the module that holds `name` on first use: aiohttp costs 0.2 s."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
