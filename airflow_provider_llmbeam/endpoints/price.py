"""Approximate price of a machine with a GPU, for messages only; the bill is Google's."""

from __future__ import annotations

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
