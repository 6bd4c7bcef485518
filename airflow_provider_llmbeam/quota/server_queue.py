"""Evidence from `/metrics` of a vLLM server: its queue and its KV cache at this moment."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

import requests

from airflow_provider_llmbeam.exceptions import LLMBeamError
from airflow_provider_llmbeam.hooks.google.authentication import ModelAuthentication
from airflow_provider_llmbeam.providers.rest import session_with
from airflow_provider_llmbeam.quota.evidence import ServerQueue
from airflow_provider_llmbeam.spec.model import OpenAIModel
from airflow_provider_llmbeam.spec.model.server import server_of

#: A page of vLLM has about 100 kB.
_MAX_BYTES = 2 * 2**20
_TIMEOUT_SECONDS = 5.0
#: The second name is that of versions before 0.10. Source: docs.vllm.ai/en/stable/usage/metrics (2026-11)
_WAITING = "vllm:num_requests_waiting"
_CACHES = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{.*\})? ([0-9.eE+-]+|NaN)(?: \d+)?")


def fetch_queue(
    model: OpenAIModel, gcp_conn_id: str, impersonation_chain: str | Sequence[str] | None = None
) -> ServerQueue | None:
    """Asks the server of a model; `None` for a provider, and for a server without such metrics.

    Args:
        model: The model.
        gcp_conn_id: Connection with the credentials for a service on Cloud Run.
        impersonation_chain: Service account to impersonate, or a chain of them.
    """
    if server_of(model, {}).kind == "provider":
        return None
    parts = urlsplit(model.base_url)
    url = f"{parts.scheme}://{parts.netloc}/metrics"
    headers = ModelAuthentication(model, gcp_conn_id=gcp_conn_id, impersonation_chain=impersonation_chain)
    try:
        with (
            session_with(headers) as session,
            session.get(url, timeout=_TIMEOUT_SECONDS, stream=True) as reply,
        ):
            if reply.status_code != 200:
                return None
            content = next(reply.iter_content(_MAX_BYTES), b"")
    except (requests.RequestException, LLMBeamError):  # the probe tells whether the server answers
        return None
    return read_queue(content.decode("utf-8", "replace"))


def read_queue(text: str) -> ServerQueue | None:
    """Reads the metrics of vLLM in the text format of Prometheus; `None` if they are not there.

    A server with several engines has a line for each: requests are added up, of the caches the fullest counts.
    """
    values: dict[str, list[float]] = {}
    for line in text.splitlines():
        if (found := _LINE.fullmatch(line.strip())) and found[1] in (_WAITING, *_CACHES) and found[2] != "NaN":
            values.setdefault(found[1], []).append(float(found[2]))
    if _WAITING not in values:
        return None
    caches = [value for name in _CACHES for value in values.get(name, ())]
    return ServerQueue(waiting=sum(values[_WAITING]), cache_ratio=max(caches, default=None))
