"""An emulated cloud on loopback for unmodified clients of Gemini, OpenAI, Cloud Storage, BigQuery and Dataflow.

The rest of the package imports nothing from here, and nothing of it is imported here.
`FIDELITY.md` lists what is emulated and what is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_llmbeam.sandbox.batch_inference.settings import BatchSettings
    from airflow_provider_llmbeam.sandbox.billing.settings import EndpointSettings
    from airflow_provider_llmbeam.sandbox.billing.tokens import TokenPrice, TokenPrices
    from airflow_provider_llmbeam.sandbox.core.clock import ManualClock
    from airflow_provider_llmbeam.sandbox.core.faults import Fault
    from airflow_provider_llmbeam.sandbox.dataflow.settings import DataflowSettings
    from airflow_provider_llmbeam.sandbox.flink.settings import FlinkSettings
    from airflow_provider_llmbeam.sandbox.models.answers import prompt_sha256
    from airflow_provider_llmbeam.sandbox.models.quota import FixedWindow, Quota
    from airflow_provider_llmbeam.sandbox.models.settings import Latency, ModelSettings
    from airflow_provider_llmbeam.sandbox.network.proxy import Proxy
    from airflow_provider_llmbeam.sandbox.server import Sandbox

__all__ = [
    "BatchSettings",
    "DataflowSettings",
    "EndpointSettings",
    "Fault",
    "FixedWindow",
    "FlinkSettings",
    "Latency",
    "ManualClock",
    "ModelSettings",
    "Proxy",
    "Quota",
    "Sandbox",
    "TokenPrice",
    "TokenPrices",
    "prompt_sha256",
]

_MODULES = {
    "BatchSettings": "batch_inference.settings",
    "DataflowSettings": "dataflow.settings",
    "EndpointSettings": "billing.settings",
    "Fault": "core.faults",
    "FixedWindow": "models.quota",
    "FlinkSettings": "flink.settings",
    "Latency": "models.settings",
    "ManualClock": "core.clock",
    "ModelSettings": "models.settings",
    "Proxy": "network.proxy",
    "Quota": "models.quota",
    "Sandbox": "server",
    "TokenPrice": "billing.tokens",
    "TokenPrices": "billing.tokens",
    "prompt_sha256": "models.answers",
}


def __getattr__(name: str) -> Any:
    """Imports the module of `name` on first use: aiohttp takes 0.2 s."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
