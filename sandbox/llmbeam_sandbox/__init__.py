"""An emulated cloud on loopback for unmodified clients of Gemini, OpenAI, Cloud Storage, BigQuery and Dataflow.

It shares no code with the package that it tests.
`FIDELITY.md` lists what is emulated and what is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmbeam_sandbox.batch_inference.settings import BatchSettings
    from llmbeam_sandbox.billing.settings import EndpointSettings
    from llmbeam_sandbox.billing.tokens import TokenPrice, TokenPrices
    from llmbeam_sandbox.core.clock import ManualClock
    from llmbeam_sandbox.core.faults import Fault
    from llmbeam_sandbox.dataflow.settings import DataflowSettings
    from llmbeam_sandbox.flink.settings import FlinkSettings
    from llmbeam_sandbox.models.answers import prompt_sha256
    from llmbeam_sandbox.models.quota import FixedWindow, Quota
    from llmbeam_sandbox.models.settings import Latency, ModelSettings
    from llmbeam_sandbox.network.proxy import Proxy
    from llmbeam_sandbox.server import Sandbox

__version__ = "0.1.0"

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
