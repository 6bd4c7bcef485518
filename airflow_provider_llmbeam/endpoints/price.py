"""What a machine with a GPU costs, for messages; a bill is Google's alone."""

from __future__ import annotations

#: USD an hour of one replica on Vertex AI in us-central1, list price of 2026; other regions cost more.
_MACHINES = {
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
#: USD an hour on Cloud Run: of a GPU without zonal redundancy, a CPU, and a GiB of memory.
_GPUS = {"nvidia-l4": 0.67}
_CPU, _GIB = 0.0648, 0.0072


def vertex_usd_per_hour(machine_type: str, replicas: int) -> float | None:
    """Of a deployed model; `None` for a machine that is not known here."""
    one = _MACHINES.get(machine_type)
    return None if one is None else one * max(replicas, 1)


def cloud_run_usd_per_hour(gpu_type: str, gpus: int, cpus: float, memory_gib: float) -> float | None:
    """Of one instance that is up; `None` for a GPU that is not known here."""
    gpu = _GPUS.get(gpu_type)
    return None if gpu is None else gpu * gpus + _CPU * cpus + _GIB * memory_gib
