"""What the platforms share: the hook of one location, a request to the model, approximate prices of machines."""

from __future__ import annotations

from typing import Generic, TypeVar

from airflow_provider_llmbeam.endpoints.platform import Answer
from airflow_provider_llmbeam.hooks.google.authentication import ModelAuthentication
from airflow_provider_llmbeam.hooks.google.base import GoogleHook, RegionalHook
from airflow_provider_llmbeam.hooks.probe import Prober, ProbeReply
from airflow_provider_llmbeam.spec.model import Model
from airflow_provider_llmbeam.transport.server_reply import PASSING_STATUSES

#: Timeout of a request; the first answer of a model that has just been loaded is slow.
ANSWER_SECONDS = 60.0

HookT = TypeVar("HookT", bound=RegionalHook)

#: Price of one replica on Vertex AI in us-central1, in US dollars per hour; list prices of 2026. Other regions
#: cost more.
_USD_PER_HOUR = {
    "g2-standard-4": 0.81,
    "g2-standard-8": 0.98,
    "g2-standard-12": 1.15,
    "g2-standard-16": 1.32,
    "g2-standard-24": 2.30,
    "g2-standard-32": 1.99,
    "g2-standard-48": 4.60,
    "g2-standard-96": 9.20,
    "a2-highgpu-1g": 4.22,
    "a2-highgpu-2g": 8.45,
    "a2-highgpu-4g": 16.90,
    "a2-highgpu-8g": 33.79,
    "a2-ultragpu-1g": 5.78,
    "a2-ultragpu-2g": 11.56,
    "a2-ultragpu-4g": 23.11,
    "a2-ultragpu-8g": 46.22,
    "a3-highgpu-1g": 12.63,
    "a3-highgpu-2g": 25.25,
    "a3-highgpu-4g": 50.50,
    "a3-highgpu-8g": 101.01,
}
#: Prices on Cloud Run, in US dollars per hour: a GPU without zonal redundancy, a CPU, and a GiB of memory.
_GPU_USD_PER_HOUR = {"nvidia-l4": 0.67}
_CPU_USD_PER_HOUR, _GIB_USD_PER_HOUR = 0.0648, 0.0072


class HookPlatform(Generic[HookT]):
    """Sends its requests through the hook of a location; see `endpoints.platform.EndpointPlatform`.

    Args:
        hook: Hook of the location.
    """

    def __init__(self, hook: HookT) -> None:
        self._hook = hook

    @property
    def location(self) -> str:
        """Region."""
        return self._hook.location

    @property
    def project(self) -> str:
        """Google Cloud project that is billed."""
        return self._hook.project


def ask(model: Model, hook: GoogleHook) -> Answer:
    """Sends one small request, as a job sends it.

    Args:
        model: The model behind the endpoint.
        hook: Hook with the credentials for the request.

    Raises:
        CloudError: There are no credentials.
    """
    prober = Prober(model, authenticate=ModelAuthentication(model, hook=hook), reply_seconds=ANSWER_SECONDS)
    (reply,) = prober.probe(1).replies
    return answer_of(reply)


def answer_of(reply: ProbeReply) -> Answer:
    """Returns what a reply means for the endpoint."""
    if reply.outcome == "answered":
        return Answer()
    status = reply.http_status
    return Answer(reply.message, may_help_to_wait=status is None or status in PASSING_STATUSES or status >= 500)


def vertex_usd_per_hour(machine_type: str, replicas: int) -> float | None:
    """Returns the price of a deployed model; `None` if the machine type is not in the list."""
    one = _USD_PER_HOUR.get(machine_type)
    return None if one is None else one * max(replicas, 1)


def cloud_run_usd_per_hour(
    gpu_type: str, gpus: int, cpus: float, memory_gib: float, instances: int
) -> float | None:
    """Returns the price of a service, at least that of one instance; `None` if the GPU type is not in the list."""
    gpu = _GPU_USD_PER_HOUR.get(gpu_type)
    if gpu is None:
        return None
    return (gpu * gpus + _CPU_USD_PER_HOUR * cpus + _GIB_USD_PER_HOUR * memory_gib) * max(instances, 1)
